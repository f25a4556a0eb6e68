"""Measure what would help: how the last layer's smoothness depends on each layer's coefficients."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attention_core import spectral
from attention_core.attention import SelfAttention
from attention_core.checks import check_callables
from attention_core.diagnosis.attribution import find_steps
from attention_core.diagnosis.batches import ModelInputs
from attention_core.diagnosis.layers import CallShape, choose_size, cut_mask, find_masks
from attention_core.diagnosis.measure import find_valid_tokens
from attention_core.diagnosis.recording import AttentionCall, Recorder, find_block
from attention_core.diagnosis.report import Leverage
from attention_core.filters import GFSA, AttnScale, CenteredAttention
from attention_core.filters.coefficients import head_coefficient, per_head
from attention_core.filters.plain import Plain
from attention_core.hosts.attach import attach
from attention_core.hosts.hook_points import Position
from attention_core.hosts.restoration import restore_model, restore_on_error
from attention_core.operators import Operator, apply_operator
from attention_core.tokens import ContraNorm, FeatScale

Make = Callable[[int], nn.Module]
MAX_SAMPLES = 4  # in one backward pass, which stores the activations
_FILTER_ARGS = 2  # A and values; a function of tokens needs tokens alone


class Interpolation(nn.Module):
    r"""A filter between A, at c = 0, and a filter without coefficients, at c = 1.

    .. math:: H_c = (1 - c) A + c H
    """

    def __init__(self, num_heads: int, filter: nn.Module) -> None:
        super().__init__()
        self.end = filter
        self.c = head_coefficient(num_heads, 0.0)

    def forward(self, A: Operator, v: Tensor) -> Tensor:
        """Apply both maps."""
        Av = apply_operator(A, v)
        return Av + per_head(self.c, Av) * (self.end(A, v) - Av)


class Superposition(nn.Module):
    r"""Filters as one filter, which is A if each of them is at identity.

    .. math:: H = A + \sum_i (H_i - A)
    """

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.ModuleList()

    def forward(self, A: Operator, v: Tensor) -> Tensor:
        """Apply all maps."""
        Av = apply_operator(A, v)
        return Av + sum(filter(A, v) - Av for filter in self.filters)


def make_contranorm(dim: int) -> ContraNorm:
    """Make ContraNorm without its norm and with one scale a channel, which is 0: the identity."""
    made = ContraNorm(dim, scale=1.0, learnable=True, norm=False)
    assert made.scale_param is not None
    nn.init.zeros_(made.scale_param)
    return made


DEFAULT_MECHANISMS: tuple[Make, ...] = (
    GFSA,
    AttnScale,
    CenteredAttention,
    FeatScale,
    make_contranorm,
)


class Target(NamedTuple):
    """A prepared model, its batch, and the selected layers, the last of which is differentiated."""

    model: nn.Module
    batch: ModelInputs
    attention: dict[str, Any]
    calls: list[CallShape]
    selected: Sequence[int]
    mask: Tensor | None


@torch.enable_grad()
def measure_leverage(
    target: Target, mechanisms: Sequence[Make] | None
) -> tuple[list[Leverage], list[str]]:
    """Return the leverage of mechanisms at identity, sorted, and notes on those that do not apply.

    A filter is put into each selected layer without one. The coefficients that the model has
    already, and trains, count too, at their values.
    """
    makes = DEFAULT_MECHANISMS if mechanisms is None else tuple(mechanisms)
    check_callables("diagnose", **{f"mechanisms[{i}]": made for i, made in enumerate(makes)})
    found: list[Leverage] = []
    notes: list[str] = []
    for group in _group_mechanisms(makes):
        try:
            entries, skipped = _measure_group(target, group)
        except ValueError:  # any of them failed in the forward pass
            entries, skipped = [], []
            for make in group:
                try:
                    alone, refused = _measure_group(target, [make])
                except ValueError as error:
                    alone, refused = [], [_describe_skipped(make, error)]
                entries, skipped = entries + alone, skipped + refused
        found, notes = found + entries, notes + skipped
    return sorted(found, key=lambda entry: -abs(entry.log_hfc_lfc)), notes


def _group_mechanisms(makes: Sequence[Make]) -> list[list[Make | None]]:
    """Group mechanisms that share a backward pass; None stands for the model's own filters.

    Mechanisms at identity do not change each other's derivatives. A group has one function of
    tokens, which is attached first, since `attach` replaces a Plain filter alone. What is not known
    to be at identity is a group of its own.
    """
    known = [make for make in makes if make in DEFAULT_MECHANISMS]
    tokens = [make for make in known if not _is_filter(make)]
    filters = [make for make in known if _is_filter(make)]
    others = [make for make in makes if make not in known]
    shared: list[Make | None] = [None, *tokens[:1], *filters]
    alone: list[list[Make | None]] = [[make] for make in [*tokens[1:], *others]]
    return [shared, *alone]


def _measure_group(
    target: Target, makes: Sequence[Make | None]
) -> tuple[list[Leverage], list[str]]:
    placed: list[_Placed] = []
    notes = []
    with restore_model(target.model):
        for make in makes:
            try:
                with restore_on_error(target.model, []):
                    placed += list(_find_own(target) if make is None else _place(target, make))
            except ValueError as error:
                notes.append(_describe_skipped(make, error))
        return (_differentiate(target, placed) if placed else []), notes


def _describe_skipped(make: Make | None, error: ValueError) -> str:
    name = "the model's own filters" if make is None else type(make(1)).__name__
    return f"no leverage of {name}: {str(error).partition(': only')[0]}"


class _Placed(NamedTuple):
    mechanism: str
    layer: int
    coefficient: str
    weight: Tensor


def _find_own(target: Target) -> Iterator[_Placed]:
    """Yield the coefficients of filters and functions of tokens that the model trains already."""
    for layer, module in _list_layers(target):
        for path, part in module.named_modules():
            if path.rpartition(".")[-1] in ("filter", "tokens"):
                named = part.named_parameters(recurse=False)
                yield from (
                    _Placed(type(part).__name__, layer, name, weight)
                    for name, weight in named
                    if weight.requires_grad
                )


def _list_layers(target: Target) -> list[tuple[int, Any]]:
    """Return the attention modules of the selected layers with their first index."""
    named = {target.calls[i].name: i for i in sorted(target.selected, reverse=True)}
    return sorted(((i, target.attention[name]) for name, i in named.items()), key=lambda x: x[0])


def _place(target: Target, make: Make) -> Iterator[_Placed]:
    if _is_filter(make):
        for layer, module in _list_layers(target):
            if isinstance(module.filter, Plain):
                module.filter = Superposition()
            if not isinstance(module.filter, Superposition):
                continue
            count = getattr(module, "count_heads", lambda module: module.num_heads)
            num_heads = count(module)
            made: nn.Module = make(num_heads)
            name = type(made).__name__
            if not list(made.parameters()):
                made = Interpolation(num_heads, made)
            made.train(module.training).to(target.batch.device)
            module.filter.filters.append(made)
            yield from _list_weights(name, layer, made)
    else:
        yield from _place_tokens(target, make, make(1))


def _is_filter(make: Make) -> bool:
    args = inspect.signature(make(1).forward).parameters.values()
    required = [arg for arg in args if arg.default is inspect.Parameter.empty]
    return len(required) == _FILTER_ARGS


def _place_tokens(target: Target, make: Make, probe: nn.Module) -> Iterator[_Placed]:
    layers = _list_layers(target)
    if all(isinstance(module, SelfAttention) for _, module in layers) and not isinstance(
        probe, ContraNorm
    ):
        for layer, module in layers:
            if module.tokens is None:
                module.tokens = make(module.dim).to(target.batch.device)
                yield from _list_weights(type(probe).__name__, layer, module.tokens)
        return
    _attach_tokens(target.model, make, probe)
    blocks = {
        layer: find_block(target.model, target.calls[layer].name, list(target.attention.values()))
        for layer, _ in layers
    }
    for part in [m for m in target.model.modules() if isinstance(m, type(probe))]:
        weights = {id(weight) for weight in part.parameters()}
        for layer, block in blocks.items():
            if weights & {id(weight) for weight in block.parameters()}:
                yield from _list_weights(type(probe).__name__, layer, part)
                break


def _attach_tokens(model: nn.Module, make: Make, probe: nn.Module) -> None:
    """Attach a function of tokens where it is published: ContraNorm on a sum or before norms."""
    if not isinstance(probe, ContraNorm):
        attach(model, tokens=make)
        return
    positions: tuple[Position, ...] = ("residual", "norms")
    for position in positions:
        try:
            attach(model, tokens=make, position=position)
            return
        except ValueError:
            if position == positions[-1]:
                raise


def _list_weights(name: str, layer: int, part: nn.Module) -> Iterator[_Placed]:
    for path, weight in part.named_parameters():
        yield _Placed(name, layer, path, weight.requires_grad_())


def _differentiate(target: Target, placed: list[_Placed]) -> list[Leverage]:
    weights = [entry.weight for entry in placed]
    total = torch.zeros(2, len(placed), dtype=torch.float64)
    batch = target.batch
    size = min(choose_size(batch, target.calls), MAX_SAMPLES)
    if any(call.is_sequence_first for call in target.calls):
        size = batch.num_samples
    for part, args, kwargs in batch.iterate_slices(size):
        for row, measure in enumerate(_measure_last(target, part, args, kwargs)):
            grads = torch.autograd.grad(measure, weights, retain_graph=not row, allow_unused=True)
            sums = [0.0 if grad is None else grad.sum().item() for grad in grads]
            share = (part.stop - part.start) / batch.num_samples
            total[row] += share * torch.tensor(sums, dtype=torch.float64)
    return [
        Leverage(entry.mechanism, entry.layer, entry.coefficient, *values)
        for entry, values in zip(placed, total.T.tolist(), strict=True)
    ]


def _measure_last(
    target: Target, part: slice, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Return the token cosine and log(HFC/LFC) after the last layer, as means over samples."""
    last = max(target.selected)
    mask = find_masks(target.batch, target.calls, target.mask)[last]
    found: list[tuple[Tensor, Tensor | None]] = []

    def finish(call: AttentionCall) -> None:
        steps, _ = find_steps(call)
        if not steps:
            raise ValueError("the tokens of its last block were not found")
        x = steps[next(reversed(steps))]
        valid = find_valid_tokens(call, cut_mask(mask, part, target.batch))
        found.append((x, valid if valid is not None and valid.shape == x.shape[:2] else None))

    with restore_model(target.model):
        Recorder(target.model, target.attention, [last], finish)
        target.model(*args, **kwargs)
    x, valid = found[0]
    x = x if valid is None else x.where(valid.unsqueeze(-1), 0.0)
    return spectral.token_cosine(x, valid).mean(), spectral.hfc_lfc(x, valid).log().mean()
