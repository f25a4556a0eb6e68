"""Measure what would help: how the last layer's smoothness depends on each layer's coefficients."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attention_core import spectral
from attention_core.attention import SelfAttention
from attention_core.checks import check_callables
from attention_core.diagnosis.attention import form_map
from attention_core.diagnosis.layers import Layer, count_shared
from attention_core.diagnosis.measure import find_valid_tokens
from attention_core.diagnosis.report import Leverage
from attention_core.diagnosis.run import PlannedRun, attach_plain, plan_run
from attention_core.filters import GFSA, AttnScale, CenteredAttention
from attention_core.filters.coefficients import head_coefficient, per_head
from attention_core.filters.plain import Plain
from attention_core.hosts.attach import attach
from attention_core.hosts.restoration import restore_model, restore_on_error
from attention_core.operators import Operator, apply_operator
from attention_core.tokens import ContraNorm, FeatScale

Make = Callable[[int], nn.Module]
MAX_SAMPLES = 4  # in one backward pass, which stores the activations


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


class _Target(NamedTuple):
    """A model with filters in its layers, and the last layer, which is differentiated.

    `names` are the attention modules by the index of their first layer.
    """

    run: PlannedRun
    names: dict[int, str]
    last: int
    mask: Tensor | None


class _Placed(NamedTuple):
    mechanism: str
    layer: int
    coefficient: str
    weight: Tensor


def measure_leverage(
    run: PlannedRun,
    selected: Sequence[int],
    mask: Tensor | None,
    mechanisms: Sequence[Make] | None,
) -> tuple[list[Leverage], list[str]]:
    """Return the leverage of mechanisms at identity, sorted, and notes on those that do not apply.

    A filter is put into each selected layer without one; the caller restores the model. The
    coefficients that the model has already, and trains, count too, at their values. Mechanisms at
    identity do not change each other's derivatives, and share a pass.
    """
    makes = DEFAULT_MECHANISMS if mechanisms is None else tuple(mechanisms)
    check_callables("diagnose", **{f"mechanisms[{i}]": made for i, made in enumerate(makes)})
    attach_plain(run.model, run.where)
    names: dict[int, str] = {}
    for i in selected:
        name = _find_filtered(run.model, run.plan.layers[i])
        if name is None:
            return [], ["no leverage: attach does not know the attention of all layers"]
        if name not in names.values():
            names[i] = name
    target = _Target(run, names, max(selected), run.find_masks(mask)[max(selected)])
    known = [make for make in makes if make in DEFAULT_MECHANISMS]
    known.sort(key=_is_filter)  # functions of tokens first: `attach` replaces a Plain filter alone
    found: list[Leverage] = []
    notes: list[str] = []
    others: list[list[Make | None]] = [[make] for make in makes if make not in known]
    for group in [[None, *known], *others]:
        entries, skipped = _measure_together(target, group)
        found, notes = found + entries, notes + skipped
    return sorted(found, key=lambda entry: -abs(entry.log_hfc_lfc)), notes


def _find_filtered(model: nn.Module, layer: Layer) -> str | None:
    """Return the name of a layer's module that has a filter, or of one around it."""
    path = layer.call.name.split(".")
    names = [".".join(path[:i]) for i in range(len(path), -1, -1)]
    return next((name for name in names if hasattr(model.get_submodule(name), "filter")), None)


def _is_filter(make: Make) -> bool:
    args = inspect.signature(make(1).forward).parameters.values()
    required = [arg for arg in args if arg.default is inspect.Parameter.empty]
    return len(required) == 2  # a map and values; a function of tokens needs tokens alone


def _measure_together(
    target: _Target, makes: Sequence[Make | None]
) -> tuple[list[Leverage], list[str]]:
    """Measure mechanisms in one pass, or in two halves if the forward pass refuses one of them.

    None stands for the model's own filters.
    """
    placed: list[_Placed] = []
    notes = []
    try:
        with restore_model(target.run.model):
            for make in makes:
                try:
                    with restore_on_error(target.run.model, []):
                        placed += _find_own(target) if make is None else _place(target, make)
                except ValueError as error:
                    notes.append(_describe_skipped(make, error))
            return (_differentiate(target, placed) if placed else []), notes
    except ValueError as error:
        if len(makes) == 1:
            return [], [_describe_skipped(makes[0], error)]
    half = (len(makes) + 1) // 2
    first, second = (_measure_together(target, part) for part in (makes[:half], makes[half:]))
    return first[0] + second[0], first[1] + second[1]


def _describe_skipped(make: Make | None, error: ValueError) -> str:
    name = "the model's own filters" if make is None else type(make(1)).__name__
    return f"no leverage of {name}: {str(error).partition(': only')[0]}"


def _find_own(target: _Target) -> Iterator[_Placed]:
    """Yield the coefficients of filters and functions of tokens that the model trains already."""
    for layer, name in target.names.items():
        for path, part in target.run.model.get_submodule(name).named_modules():
            if path.rpartition(".")[-1] in ("filter", "tokens"):
                for coefficient, weight in part.named_parameters(recurse=False):
                    if weight.requires_grad:
                        yield _Placed(type(part).__name__, layer, coefficient, weight)


def _place(target: _Target, make: Make) -> Iterator[_Placed]:
    model, device = target.run.model, target.run.inputs.device
    modules: dict[int, Any] = {i: model.get_submodule(x) for i, x in target.names.items()}
    probe = make(1)
    name = type(probe).__name__
    is_own = all(isinstance(module, SelfAttention) for module in modules.values())
    if not _is_filter(make) and (isinstance(probe, ContraNorm) or not is_own):
        yield from _attach_tokens(target, make, probe)
        return
    for layer, module in modules.items():
        if not _is_filter(make):
            if module.tokens is None:
                module.tokens = make(module.dim).to(device)
                yield from _list_weights(name, layer, module.tokens)
            continue
        if isinstance(module.filter, Plain):
            module.filter = Superposition()
        if isinstance(module.filter, Superposition):
            count = getattr(module, "count_heads", lambda module: module.num_heads)
            made: nn.Module = make(count(module))
            if not list(made.parameters()):
                made = Interpolation(count(module), made)
            module.filter.filters.append(made.train(module.training).to(device))
            yield from _list_weights(name, layer, made)


def _attach_tokens(target: _Target, make: Make, probe: nn.Module) -> Iterator[_Placed]:
    """Attach a function of tokens where it is published: ContraNorm on a sum or before norms."""
    model = target.run.model
    if not isinstance(probe, ContraNorm):
        attach(model, tokens=make)
    else:
        try:
            attach(model, tokens=make, position="residual")
        except ValueError:
            attach(model, tokens=make, position="norms")
    names = {layer: name.split(".") for layer, name in target.names.items()}
    first, *_, last = [*names.values()] * 2
    for path, part in model.named_modules():
        if isinstance(part, type(probe)):
            shared = {layer: count_shared(path.split("."), name) for layer, name in names.items()}
            nearest = max(shared, key=lambda layer: shared[layer])
            if len(names) == 1 or shared[nearest] > count_shared(first, last):  # not a final norm
                yield from _list_weights(type(probe).__name__, nearest, part)


def _list_weights(name: str, layer: int, part: nn.Module) -> Iterator[_Placed]:
    for path, weight in part.named_parameters():
        yield _Placed(name, layer, path, weight.requires_grad_())


@torch.enable_grad()
def _differentiate(target: _Target, placed: list[_Placed]) -> list[Leverage]:
    whole, run = target.run, None
    layers, inputs = whole.plan.layers, whole.inputs
    total = torch.zeros(2, len(placed), dtype=torch.float64)
    for part, args, kwargs in inputs.iterate_slices(whole.choose_size(MAX_SAMPLES)):
        size = part.stop - part.start
        # a polynomial calls other functions for another number of samples
        run = run or plan_run(whole.model, inputs.replace(args, kwargs, size), whole.where)
        recorded = run.record(lambda plan: _list_last(plan.layers[target.last]), args, kwargs, size)
        layer = recorded.plan.layers[target.last]
        for row, measure in enumerate(_measure_last(layer, whole.cut_mask(target.mask, part))):
            grads = torch.autograd.grad(
                measure, [x.weight for x in placed], retain_graph=not row, allow_unused=True
            )
            sums = [0.0 if grad is None else grad.sum().item() for grad in grads]
            share = size / inputs.num_samples
            total[row] += share * torch.tensor(sums, dtype=torch.float64)
        for node in _list_last(layer):
            node.value = None
    return [
        Leverage(x.mechanism, layers[x.layer].index, x.coefficient, a, b, layers[x.layer].stack)
        for x, (a, b) in zip(placed, total.T.tolist(), strict=True)
    ]


def _list_last(layer: Layer) -> set[Any]:
    if not layer.steps:
        raise ValueError("the tokens of its last layer were not found")
    return {next(reversed(layer.steps.values())), *layer.call.list_operands()}


def _measure_last(layer: Layer, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the token cosine and log(HFC/LFC) after the last layer, as means over samples."""
    x = next(reversed(layer.steps.values())).value
    assert x is not None
    x = layer.layout.to_tokens(x)
    if valid is None:
        with torch.no_grad():
            A = form_map(layer.call)
        valid = None if A is None else find_valid_tokens(layer.flatten_map(A))
    valid = valid if valid is not None and valid.shape == x.shape[:2] else None
    x = x if valid is None else x.where(valid.unsqueeze(-1), 0.0)
    return spectral.token_cosine(x, valid).mean(), spectral.hfc_lfc(x, valid).log().mean()
