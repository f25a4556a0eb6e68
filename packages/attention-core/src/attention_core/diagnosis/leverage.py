"""Measure what would help: how the last layer's smoothness depends on each layer's coefficients."""

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attention_core import spectral
from attention_core.attention import SelfAttention
from attention_core.checks import check_callables
from attention_core.diagnosis.attention import form_maps
from attention_core.diagnosis.batches import ModelInputs
from attention_core.diagnosis.layers import count_shared
from attention_core.diagnosis.measure import find_valid_tokens, flatten_map, to_tokens
from attention_core.diagnosis.report import Leverage
from attention_core.diagnosis.run import PlannedRun, plan_run
from attention_core.filters import GFSA, AttnScale, CenteredAttention
from attention_core.filters.coefficients import head_coefficient, per_head
from attention_core.filters.plain import Plain
from attention_core.hosts.adapter import Filtered
from attention_core.hosts.attach import attach
from attention_core.hosts.hook_points import Position
from attention_core.hosts.restoration import restore_model, restore_on_error
from attention_core.hosts.selection import Where, self_attention_modules
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
    """A prepared model, its batch, and the layers, the last of which is differentiated.

    `layers` are the attention modules with a filter by the index of their first layer.
    """

    model: nn.Module
    inputs: ModelInputs
    layers: list[tuple[int, Any]]
    names: dict[int, str]
    last: int
    mask: Tensor | None
    where: Where | None


@torch.enable_grad()
def measure_leverage(
    model: nn.Module,
    inputs: ModelInputs,
    selected: Sequence[int],
    mask: Tensor | None,
    where: Where | None,
    mechanisms: Sequence[Make] | None,
) -> tuple[list[Leverage], list[str]]:
    """Return the leverage of mechanisms at identity, sorted, and notes on those that do not apply.

    A filter is put into each selected layer without one; the caller restores the model. The
    coefficients that the model has already, and trains, count too, at their values.
    """
    makes = DEFAULT_MECHANISMS if mechanisms is None else tuple(mechanisms)
    check_callables("diagnose", **{f"mechanisms[{i}]": made for i, made in enumerate(makes)})
    target = _prepare_target(model, inputs, selected, mask, where)
    if target is None:
        return [], ["no leverage: attach does not know the attention of all layers"]
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


def _prepare_target(
    model: nn.Module,
    inputs: ModelInputs,
    selected: Sequence[int],
    mask: Tensor | None,
    where: Where | None,
) -> Target | None:
    stock = _find_stock(model, where)
    if stock:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # attention that no filter supports stays as it is
            attach(model, layers=stock, where=where)
    plan = plan_run(model, inputs, where).plan
    names = {i: plan.layers[i].call.name for i in selected if i < len(plan.layers)}
    modules = {i: model.get_submodule(name) for i, name in names.items()}
    if len(names) < len(selected) or not all(hasattr(m, "filter") for m in modules.values()):
        return None
    firsts = {module: i for i, module in sorted(modules.items(), reverse=True)}
    layers = sorted(((i, module) for module, i in firsts.items()), key=lambda pair: pair[0])
    return Target(model, inputs, layers, names, max(selected), mask, where)


def _find_stock(model: nn.Module, where: Where | None) -> list[int]:
    """Return the indices of the attention that attach knows and that has no filter yet."""
    try:
        found = self_attention_modules(model, where)
    except ValueError:
        return []
    return [i for i, (module, _) in enumerate(found) if not isinstance(module, Filtered)]


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
    for layer, module in target.layers:
        for path, part in module.named_modules():
            if path.rpartition(".")[-1] in ("filter", "tokens"):
                named = part.named_parameters(recurse=False)
                yield from (
                    _Placed(type(part).__name__, layer, name, weight)
                    for name, weight in named
                    if weight.requires_grad
                )


def _place(target: Target, make: Make) -> Iterator[_Placed]:
    if _is_filter(make):
        for layer, module in target.layers:
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
            made.train(module.training).to(target.inputs.device)
            module.filter.filters.append(made)
            yield from _list_weights(name, layer, made)
    else:
        yield from _place_tokens(target, make, make(1))


def _is_filter(make: Make) -> bool:
    args = inspect.signature(make(1).forward).parameters.values()
    required = [arg for arg in args if arg.default is inspect.Parameter.empty]
    return len(required) == _FILTER_ARGS


def _place_tokens(target: Target, make: Make, probe: nn.Module) -> Iterator[_Placed]:
    layers = target.layers
    if all(isinstance(module, SelfAttention) for _, module in layers) and not isinstance(
        probe, ContraNorm
    ):
        for layer, module in layers:
            if module.tokens is None:
                module.tokens = make(module.dim).to(target.inputs.device)
                yield from _list_weights(type(probe).__name__, layer, module.tokens)
        return
    _attach_tokens(target.model, make, probe)
    names = {layer: target.names[layer] for layer, _ in layers}
    first, *_, last = [*names.values()] * 2
    common = count_shared(first.split("."), last.split("."))
    for path, part in target.model.named_modules():
        if isinstance(part, type(probe)):
            shared = {
                layer: count_shared(path.split("."), name.split("."))
                for layer, name in names.items()
            }
            nearest = max(shared, key=lambda layer: shared[layer])
            if len(names) > 1 and shared[nearest] <= common:
                continue  # outside of all layers, such as the final norm
            yield from _list_weights(type(probe).__name__, nearest, part)


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
    run, inputs = plan_run(target.model, target.inputs, target.where), target.inputs
    layers, mask = run.plan.layers, run.find_masks(target.mask)[target.last]
    is_first = any(layer.layout.is_sequence_first for layer in layers)
    size = inputs.num_samples if is_first else min(run.choose_size(), MAX_SAMPLES)
    for part, args, kwargs in inputs.iterate_slices(size):
        sliced = inputs.replace(args, kwargs, part.stop - part.start)
        again = plan_run(target.model, sliced, target.where)
        valid = run.cut_mask(mask, part)
        for row, measure in enumerate(_measure_last(target, again, valid)):
            grads = torch.autograd.grad(measure, weights, retain_graph=not row, allow_unused=True)
            sums = [0.0 if grad is None else grad.sum().item() for grad in grads]
            share = (part.stop - part.start) / inputs.num_samples
            total[row] += share * torch.tensor(sums, dtype=torch.float64)
    return [
        Leverage(
            entry.mechanism,
            layers[entry.layer].index,
            entry.coefficient,
            token_cosine=values[0],
            log_hfc_lfc=values[1],
            stack=layers[entry.layer].stack,
        )
        for entry, values in zip(placed, total.T.tolist(), strict=True)
    ]


def _measure_last(target: Target, run: PlannedRun, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the token cosine and log(HFC/LFC) after the last layer, as means over samples."""
    layer = run.plan.layers[target.last]
    if not layer.steps:
        raise ValueError("the tokens of its last layer were not found")
    node = next(reversed(layer.steps.values()))
    if not run.record({node, *layer.call.list_operands()}, run.inputs.args, run.inputs.kwargs):
        raise ValueError("two passes over the same samples call different functions")
    assert node.value is not None
    x = to_tokens(node.value, layer.layout)
    if valid is None and (maps := form_maps(layer.call)) is not None:
        module = target.model.get_submodule(layer.call.name)
        valid = find_valid_tokens(flatten_map(maps[0].detach(), layer, module))
    valid = valid if valid is not None and valid.shape == x.shape[:2] else None
    x = x if valid is None else x.where(valid.unsqueeze(-1), 0.0)
    return spectral.token_cosine(x, valid).mean(), spectral.hfc_lfc(x, valid).log().mean()
