"""Measure what would help: how the last layer's smoothness depends on each layer's coefficients."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attention_core import spectral
from attention_core.attention import SelfAttention
from attention_core.checks import check_callables
from attention_core.diagnosis.attention import form_map
from attention_core.diagnosis.layers import Layer, count_shared
from attention_core.diagnosis.measure import find_valid_tokens
from attention_core.diagnosis.record import Node
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


class Superposition(nn.ModuleList):
    r"""Filters as one filter, which is A if each of them is at identity.

    .. math:: H = A + \sum_i (H_i - A)
    """

    def forward(self, A: Operator, v: Tensor) -> Tensor:
        """Apply all maps."""
        Av = apply_operator(A, v)
        return Av + sum(filter(A, v) - Av for filter in self)


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
# a mechanism, the index of a layer, the name of a coefficient, and the coefficient
Placed = tuple[str, int, str, Tensor]


class Target(NamedTuple):
    """A model with filters in its layers, and the last layer, which is differentiated.

    `names` are the attention modules by the index of their first layer.
    """

    run: PlannedRun
    names: dict[int, str]
    last: int
    mask: Tensor | None


def measure_leverage(
    run: PlannedRun, selected: Sequence[int], mask: Tensor | None, mechanisms: Sequence[Make] | None
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
        path = run.plan.layers[i].call.name.split(".")
        around = [".".join(path[:i]) for i in range(len(path), -1, -1)]
        name = next((x for x in around if hasattr(run.model.get_submodule(x), "filter")), None)
        if name is None:
            return [], ["no leverage: attach does not know the attention of all layers"]
        if name not in names.values():
            names[i] = name
    target = Target(run, names, max(selected), run.find_masks(mask)[max(selected)])
    known = [make for make in makes if make in DEFAULT_MECHANISMS]
    known.sort(key=_is_filter)  # functions of tokens first: `attach` replaces a Plain filter alone
    groups: list[list[Make | None]] = [[make] for make in makes if make not in known]
    found, notes = _join(_measure_together(target, group) for group in ([None, *known], *groups))
    return sorted(found, key=lambda entry: -abs(entry.log_hfc_lfc)), notes


def _join(parts: Iterable[tuple[list[Leverage], list[str]]]) -> tuple[list[Leverage], list[str]]:
    found, notes = zip(*parts, strict=True)
    return [*chain(*found)], [*chain(*notes)]


def _is_filter(make: Make) -> bool:
    args = inspect.signature(make(1).forward).parameters.values()
    required = [arg for arg in args if arg.default is inspect.Parameter.empty]
    return len(required) == 2  # a map and values; a function of tokens needs tokens alone


def _measure_together(
    target: Target, makes: Sequence[Make | None]
) -> tuple[list[Leverage], list[str]]:
    """Measure mechanisms in one pass, or each alone if the forward pass refuses one of them.

    None stands for the model's own filters.
    """
    model, placed, notes = target.run.model, list[Placed](), list[str]()
    try:
        with restore_model(model):
            for make in makes:
                try:
                    with restore_on_error(model, []):
                        placed += _find_own(target) if make is None else _place(target, make)
                except ValueError as error:
                    notes.append(_describe_skipped(make, error))
            return (_differentiate(target, placed) if placed else []), notes
    except ValueError as error:
        if len(makes) == 1:
            return [], [_describe_skipped(makes[0], error)]
    return _join(_measure_together(target, [make]) for make in makes)


def _describe_skipped(make: Make | None, error: ValueError) -> str:
    name = "the model's own filters" if make is None else type(make(1)).__name__
    return f"no leverage of {name}: {str(error).partition(': only')[0]}"


def _find_own(target: Target) -> Iterator[Placed]:
    """Yield the coefficients of filters and functions of tokens that the model trains already."""
    for layer, name in target.names.items():
        for path, part in target.run.model.get_submodule(name).named_modules():
            if path.rpartition(".")[-1] in ("filter", "tokens"):
                for coefficient, weight in part.named_parameters(recurse=False):
                    if weight.requires_grad:
                        yield type(part).__name__, layer, coefficient, weight


def _place(target: Target, make: Make) -> Iterator[Placed]:
    model, is_filter = target.run.model, _is_filter(make)
    modules: dict[int, Any] = {i: model.get_submodule(x) for i, x in target.names.items()}
    name = type(make(1)).__name__
    is_own = all(isinstance(module, SelfAttention) for module in modules.values())
    if not is_filter and not (is_own and name != "ContraNorm"):
        yield from _attach_tokens(target, make, name)
        return
    for layer, module in modules.items():
        if not is_filter and module.tokens is None:
            made = module.tokens = make(module.dim)
        elif is_filter and isinstance(module.filter, Plain | Superposition):
            count = getattr(module, "count_heads", lambda module: module.num_heads)
            made = make(count(module))
            if not list(made.parameters()):
                made = Interpolation(count(module), made)
            if isinstance(module.filter, Plain):
                module.filter = Superposition()
            module.filter.append(made.train(module.training))
        else:
            continue
        yield from _list_weights(name, layer, made.to(target.run.inputs.device))


def _attach_tokens(target: Target, make: Make, mechanism: str) -> Iterator[Placed]:
    """Attach a function of tokens where it is published: ContraNorm on a sum or before norms."""
    model = target.run.model
    if mechanism != "ContraNorm":
        attach(model, tokens=make)
    else:
        try:
            attach(model, tokens=make, position="residual")
        except ValueError:
            attach(model, tokens=make, position="norms")
    names = {layer: name.split(".") for layer, name in target.names.items()}
    first, *_, last = [*names.values()] * 2
    for path, part in model.named_modules():
        if type(part).__name__ == mechanism:
            shared = {layer: count_shared(path.split("."), name) for layer, name in names.items()}
            nearest = max(shared, key=lambda layer: shared[layer])
            if len(names) == 1 or shared[nearest] > count_shared(first, last):  # not a final norm
                yield from _list_weights(mechanism, nearest, part)


def _list_weights(name: str, layer: int, part: nn.Module) -> Iterator[Placed]:
    for path, weight in part.named_parameters():
        yield name, layer, path, weight.requires_grad_()


@torch.enable_grad()
def _differentiate(target: Target, placed: list[Placed]) -> list[Leverage]:
    whole, run = target.run, None
    layers, inputs = whole.plan.layers, whole.inputs
    total = torch.zeros(2, len(placed), dtype=torch.float64)
    for part, few in inputs.iterate_slices(whole.choose_size(MAX_SAMPLES)):
        # a polynomial calls other functions for another number of samples
        run = run or plan_run(whole.model, few, whole.where)
        with run.record(lambda plan: _list_last(plan.layers[target.last]), few) as plan:
            mask = whole.cut_mask(target.mask, part)
            for row, measure in enumerate(_measure_last(plan.layers[target.last], mask)):
                grads = torch.autograd.grad(
                    measure, [x[-1] for x in placed], retain_graph=not row, allow_unused=True
                )
                sums = [0.0 if grad is None else grad.sum().item() for grad in grads]
                share = few.num_samples / inputs.num_samples
                total[row] += share * torch.tensor(sums, dtype=torch.float64)
    return [
        Leverage(name, layers[i].index, coefficient, cosine, ratio, layers[i].stack)
        for (name, i, coefficient, _), (cosine, ratio) in zip(placed, total.T.tolist(), strict=True)
    ]


def _list_last(layer: Layer) -> set[Node]:
    if not layer.steps:
        raise ValueError("the tokens of its last layer were not found")
    return {next(reversed(layer.steps.values())), *layer.call.list_operands()}


def _measure_last(layer: Layer, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the token cosine and log(HFC/LFC) after the last layer, as means over samples."""
    x = layer.read_tokens(next(reversed(layer.steps.values())))
    if valid is None:
        with torch.no_grad():
            A = form_map(layer.call)
        valid = None if A is None else find_valid_tokens(layer.flatten_map(A))
    valid = valid if valid is not None and valid.shape == x.shape[:2] else None
    x = x if valid is None else x.where(valid.unsqueeze(-1), 0.0)
    return spectral.token_cosine(x, valid).mean(), spectral.hfc_lfc(x, valid).log().mean()
