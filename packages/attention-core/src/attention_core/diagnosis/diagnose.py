"""Diagnose a model on a batch: record a pass, measure each attention layer, and restore it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attention_core.checks import check_choices, check_models
from attention_core.diagnosis.batches import ModelInputs
from attention_core.diagnosis.leverage import measure_leverage
from attention_core.diagnosis.report import Diagnosis
from attention_core.diagnosis.run import measure_run, plan_run
from attention_core.hosts.restoration import restore_model
from attention_core.hosts.selection import Layers, Where, find_wrapper, select_layers

Level = Literal["full", "light"]
WRAPPERS = ("torch.nn.parallel", "torch.distributed", "torch.jit", "torch._dynamo")


def diagnose(
    model: nn.Module,
    batch: Any,
    layers: Layers | None = None,
    *,
    mask: Tensor | None = None,
    mechanisms: Sequence[Callable[[int], nn.Module]] | None = None,
    where: Where | None = None,
    measures: Level = "full",
) -> Diagnosis:
    """Measure the over-smoothing of a model on a batch: where it arises, and what drives it.

    The model is not changed: a pass is recorded as a graph of tensors, in which its residual
    stream, branches and maps are found. Memory: the tokens of each step, and the operands of each
    map, of one slice of the batch.

    Args:
        model: Any that applies attention maps in functions of torch, with filters or without.
        batch: What the model takes: a tensor, a tuple of arguments or a mapping of keywords.
        layers: The attention layers to measure, in the order of their calls; all by default.
        mask: True for valid tokens, (B, N); by default the batch's `attention_mask` or key padding
            mask, and without either, keys that no query attends to count as padding.
        mechanisms: Those attached at identity, one by one, for the report's leverage: GFSA,
            AttnScale, CenteredAttention, FeatScale and ContraNorm by default; [] skips it.
        where: The attention to measure, as in `attach`.
        measures: `light` takes tokens and responses alone, without leverage.

    Raises:
        ValueError: for a model without attention, and for tokens that are not finite.

    Source: https://arxiv.org/abs/2203.05962, https://arxiv.org/abs/2401.04301v2

    >>> from attention_core import SelfAttention
    >>> report = diagnose(SelfAttention(8, 2), torch.randn(3, 5, 8))
    >>> report.num_samples, report.num_tokens, len(report.layers[0].attention_entropy)
    (3, 5, 2)
    """
    check_models("diagnose", model=model)
    check_choices("diagnose", measures=(measures, Level))
    check_wrapped(model)
    inputs = ModelInputs(model, batch)
    with prepare_model(model), torch.no_grad():
        run = plan_run(model, inputs, where)
        depth = len(run.plan.layers)
        chosen = sorted(range(depth) if layers is None else select_layers(layers, depth))
        report = measure_run(run, chosen, mask, measures == "full")
    if measures != "full" or (mechanisms is not None and not len(mechanisms)):
        return report
    found: Any = None, ["no leverage: a backward pass through the model fails"]
    with suppress(RuntimeError), prepare_model(model):
        found = measure_leverage(run, chosen, mask, mechanisms)
    return replace(report, leverage=found[0], notes=[*report.notes, *found[1]])


@contextmanager
def prepare_model(model: nn.Module) -> Iterator[None]:
    """Set eval mode, compile nothing; restore the model and the random state at the end."""
    devices = [*{weight.device for weight in model.parameters() if weight.is_cuda}]
    eager = torch.compiler.set_stance("force_eager")
    with eager, restore_model(model, [*model.buffers()]), torch.random.fork_rng(devices):
        model.eval()
        yield


def check_wrapped(model: nn.Module, wrappers: tuple[str, ...] = WRAPPERS) -> None:
    """Raise ValueError for a model with a module of packages that wrap or compile modules."""
    if found := find_wrapper(model, wrappers):
        name, base = found
        raise ValueError(
            f"{base} wraps {name or 'the model'}, whose functions no diagnosis sees: unwrap it "
            "first, as model.module or model._orig_mod"
        )
