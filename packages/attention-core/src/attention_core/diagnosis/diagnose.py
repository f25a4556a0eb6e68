"""Diagnose a model on a batch: run it with hooks, measure each attention layer, and restore it."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attention_core.checks import check_models
from attention_core.diagnosis.batches import ModelInputs
from attention_core.diagnosis.layers import list_calls, measure_layers
from attention_core.diagnosis.leverage import Target, measure_leverage
from attention_core.diagnosis.report import Diagnosis, Leverage
from attention_core.diagnosis.verdict import write_verdict
from attention_core.hosts.adapter import Filtered
from attention_core.hosts.attach import attach
from attention_core.hosts.restoration import restore_model
from attention_core.hosts.selection import Layers, Where, select_layers, self_attention_modules

_WRAPPERS = ("torch.nn.parallel", "torch.distributed", "torch.jit", "torch._dynamo")


def diagnose(
    model: nn.Module,
    batch: Any,
    layers: Layers | None = None,
    *,
    mask: Tensor | None = None,
    mechanisms: Sequence[Callable[[int], nn.Module]] | None = None,
    where: Where | None = None,
) -> Diagnosis:
    """Measure the over-smoothing of a model on a batch: where it arises, and what drives it.

    The model is any whose attention `attach` knows, with filters or without, and is not changed.
    `batch` is what it takes: a tensor, a tuple of arguments or a mapping of keyword arguments. Its
    `attention_mask` or key padding mask says which tokens are valid. `mask` (B, N) says so for any
    other model; without either, keys that no query attends to count as padding. `layers` selects
    attention layers in the order in which the model calls them, as in `attach`; all by default.
    `where` names attention that `attach` does not know. `mechanisms` are attached at identity, one
    after the other, for the report's leverage: GFSA, AttnScale, CenteredAttention, FeatScale and
    ContraNorm by default; an empty list skips it.

    Raises ValueError for a model without known attention, one that is wrapped or compiled, a
    selection without a layer, one token alone, a mask of another shape, a sample without two valid
    tokens, and tokens that are not finite, with the first such layer; TypeError for another batch.

    Source: https://arxiv.org/abs/2203.05962, https://arxiv.org/abs/2401.04301v2

    >>> from attention_core import SelfAttention
    >>> report = diagnose(SelfAttention(8, 2), torch.randn(3, 5, 8))
    >>> report.num_samples, report.num_tokens, len(report.layers[0].attention_entropy)
    (3, 5, 2)
    """
    check_models("diagnose", model=model)
    _check_wrapped(model)
    given = ModelInputs(model, batch)
    with prepare_model(model, where) as (attention, warned):
        calls = list_calls(model, given, attention)
        chosen = list(range(len(calls))) if layers is None else select_layers(layers, len(calls))
        measured = measure_layers(model, given, attention, calls, sorted(chosen), mask)
        leverage: list[Leverage] | None = None
        skipped: list[str] = []
        if mechanisms is None or len(mechanisms):
            target = Target(model, given, attention, calls, chosen, mask)
            leverage, skipped = measure_leverage(target, mechanisms)
    return Diagnosis(
        model=type(model).__name__,
        num_tokens=measured.num_tokens,
        num_samples=measured.num_samples,
        layers=measured.layers,
        leverage=leverage,
        verdict=write_verdict(measured.layers),
        notes=[*warned, *measured.notes, *skipped],
    )


@contextmanager
def prepare_model(
    model: nn.Module, where: Where | None
) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Set eval mode and give attention without a filter a Plain one; restore the model at the end.

    Yields all attention with a filter by its name, and what the user should know of the rest. The
    random state stays, too.
    """
    devices = {weight.device for weight in model.parameters() if weight.is_cuda}
    with restore_model(model), torch.random.fork_rng(list(devices)):
        warned = _attach_plain(model, where)
        model.eval()
        named = {
            name: module
            for name, module in model.named_modules()
            if isinstance(getattr(module, "filter", None), nn.Module)
        }
        yield named, warned


def _attach_plain(model: nn.Module, where: Where | None) -> list[str]:
    has_own = any(
        isinstance(getattr(module, "filter", None), nn.Module) and not isinstance(module, Filtered)
        for module in model.modules()
    )
    try:
        found = self_attention_modules(model, where)
    except ValueError:
        if not has_own or where is not None:
            raise
        return []  # all of it is attention_core.SelfAttention
    stock = [i for i, (module, _) in enumerate(found) if not isinstance(module, Filtered)]
    if not stock:
        return []
    logger = logging.getLogger("attention_core.hosts.attach")
    level = logger.level
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            logger.setLevel(logging.WARNING)
            attach(model, layers=stock, where=where)
        finally:
            logger.setLevel(level)
    return [str(entry.message) for entry in caught if entry.category is UserWarning]


def _check_wrapped(model: nn.Module) -> None:
    for base in type(model).__mro__:
        if base.__module__.startswith(_WRAPPERS):
            inner = "model._orig_mod" if hasattr(model, "_orig_mod") else "model.module"
            raise ValueError(
                f"{base.__name__} wraps the model: diagnose the one inside, such as {inner}"
            )
