"""Measure what would help: how the last layer's smoothness depends on each coefficient."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attention_core import spectral
from attention_core.checks import check_callables
from attention_core.diagnosis.attention import form_map
from attention_core.diagnosis.layers import Layer
from attention_core.diagnosis.measure import find_valid_tokens
from attention_core.diagnosis.projections import arrange_rows
from attention_core.diagnosis.record import Node
from attention_core.diagnosis.report import Leverage
from attention_core.diagnosis.run import PlannedRun, attach_plain, plan_run
from attention_core.diagnosis.tokens import find_outliers, trim_tokens
from attention_core.filters import GFSA, AttnScale, CenteredAttention
from attention_core.filters.plain import Plain
from attention_core.operators import Host, apply_operator, masked_mean
from attention_core.spectral.heads import SMALLEST_WEIGHT
from attention_core.tokens import ContraNorm, FeatScale

Make = Callable[[int], nn.Module]
Key = tuple[str, int, str]  # a mechanism, the place of a layer, the name of a coefficient
MAX_SAMPLES = 4  # in one backward pass, which stores the activations


def make_contranorm(dim: int) -> ContraNorm:
    """Make ContraNorm without its norm and with one scale a channel, which is 0: the identity."""
    made = ContraNorm(dim, scale=1.0, learnable=True, norm=False)
    assert made.scale_param is not None
    nn.init.zeros_(made.scale_param)
    return made


DEFAULT_MECHANISMS: tuple[Make, ...] = (
    partial(GFSA, learn=("w0", "w1", "wK")),
    AttnScale,
    CenteredAttention,
    FeatScale,
    make_contranorm,
)


def measure_leverage(
    run: PlannedRun, selected: Sequence[int], mask: Tensor | None, mechanisms: Sequence[Make] | None
) -> tuple[list[Leverage], list[str]]:
    """Return the leverage of mechanisms at identity, sorted, and notes on those that do not apply.

    One backward pass gives the gradients behind each place where a mechanism acts: a filter in each
    selected layer without one, ContraNorm on the sums of a layer, any other function of tokens
    behind the output projection. The caller restores the model.
    """
    makes = DEFAULT_MECHANISMS if mechanisms is None else tuple(mechanisms)
    check_callables("diagnose", **{f"mechanisms[{i}]": made for i, made in enumerate(makes)})
    attach_plain(run.model, run.where)
    found, notes, planned = dict[Key, Tensor](), dict[str, None](), None
    masks = run.find_masks(mask)
    for parameter in run.model.parameters():  # so that each tensor of a pass has a gradient
        if parameter.is_floating_point():
            parameter.requires_grad_()
    with torch.enable_grad():
        for part, few in run.inputs.iterate_slices(run.choose_size(MAX_SAMPLES)):
            # a model may call other functions for another number of samples
            if planned is None or few.num_samples != planned.inputs.num_samples:
                planned = plan_run(run.model, few, run.where)
            with planned.record(lambda plan: _list_nodes(plan.layers, selected), few) as plan:
                layers = {i: (plan.layers[i], run.cut_mask(masks[i], part)) for i in selected}
                for i, (layer, _) in layers.items():  # the operator of a host hides its mask
                    layer.call.may_pad = run.plan.layers[i].call.may_pad
                share = few.num_samples / run.inputs.num_samples
                for key, moves in _differentiate(layers, makes, notes):
                    found[key] = found.get(key, 0) + share * torch.tensor(moves).double()
    entries = []
    for (name, i, weight), (cosine, ratio) in ((key, x.tolist()) for key, x in found.items()):
        layer = run.plan.layers[i]
        entries.append(Leverage(name, layer.index, weight, cosine, ratio, layer.stack))
    return sorted(entries, key=lambda entry: -abs(entry.log_hfc_lfc)), [*notes]


def _list_nodes(layers: Sequence[Layer], selected: Sequence[int]) -> Iterator[Node]:
    last = layers[max(selected)]
    if not last.steps:
        raise ValueError("the tokens of its last layer were not found")
    yield next(reversed(last.steps.values()))
    for i in selected:
        yield from (*_list_places(layers[i]), *layers[i].call.list_operands())


def _list_places(layer: Layer) -> list[Node]:
    """Return the nodes that a mechanism may change: a map's result, a projection's, and sums."""
    sums = [change.node for change in layer.changes if change.branches]
    return [layer.call.node, *(layer.projection or ())[1:], *sums]


def _differentiate(
    layers: dict[int, tuple[Layer, Tensor | None]], makes: Sequence[Make], notes: dict[str, None]
) -> Iterator[tuple[Key, list[float]]]:
    """Yield the derivatives of the two measures of the last layer by each coefficient."""
    places = [(node, node.value) for x, _ in layers.values() for node in _list_places(x)]
    nodes = {node: x for node, x in places if x is not None and x.requires_grad}
    last, mask = layers[max(layers)]
    x = last.arrange_tokens(node := next(reversed(last.steps.values())), node.value)
    valid = _fit_mask(x, mask, last, _form_map(last))
    x = x if valid is None else x.where(valid.unsqueeze(-1), 0.0)
    x, valid = trim_tokens(x, valid, *find_outliers(x.detach(), valid))
    measures = spectral.token_cosine(x, valid).mean(), spectral.hfc_lfc(x, valid).log().mean()
    rows = [
        torch.autograd.grad(measure, [*nodes.values()], retain_graph=True, allow_unused=True)
        for measure in measures
    ]
    grads = dict(zip(nodes, zip(*rows, strict=True), strict=True))
    for i, (layer, mask) in layers.items():
        A = _form_map(layer)
        operator = _read_operator(layer, A)
        for make in makes:
            name = type(make(1)).__name__
            try:
                for node, made, args, arrange in _find_places(layer, make, mask, A, operator):
                    behind = [g for g in grads.get(node, ()) if g is not None]
                    if not behind:
                        raise ValueError(f"a tensor of layer {i} has no gradient")
                    for weight, moves in _differentiate_place(made, args, map(arrange, behind)):
                        yield (name, i, weight), moves
            except ValueError as error:
                notes[f"no leverage of {name}: {str(error).partition(': only')[0]}"] = None


def _find_places(
    layer: Layer, make: Make, mask: Tensor | None, A: Tensor | None, operator: Host | None
) -> Iterator[tuple[Any, ...]]:
    """Yield a node, the mechanism, its arguments, and how gradients get the shape of its output."""
    call = layer.call
    parameters = inspect.signature(make(1).forward).parameters.values()
    # a filter needs a map and values; a function of tokens needs tokens alone
    if sum(x.default is inspect.Parameter.empty for x in parameters) == 2:
        if call.filter is None or isinstance(call.filter.module, Plain):
            if operator is None:
                raise ValueError(f"the values of {call.name or 'its attention'} were not found")
            made = make(operator.like.shape[-3]).to(operator.like.device)
            yield call.node, made, (operator, operator.like), layer.flatten_map
        return
    if A is not None and (A.triu(1) == 0).all():
        raise ValueError("it would leak future tokens")
    shape = (layer.num_samples, layer.num_heads, *call.shape[-2:])
    is_sum = isinstance(make(1), ContraNorm)
    sums = [change.node for change in layer.changes if change.branches]
    for node in sums if is_sum else (layer.projection or ())[1:]:
        rows, tokens = partial(arrange_rows, shape=shape), partial(layer.arrange_tokens, node)
        arrange: Callable[[Any], Any] = tokens if is_sum else rows
        x = arrange(node.value)
        valid = _fit_mask(x, mask, layer, A)
        yield node, make(x.shape[-1]).to(x.device), (x, valid), arrange


def _read_operator(layer: Layer, A: Tensor | None) -> Host | None:
    """Return the map of a layer as an operator like its values (B, H, N, d), None without them."""
    call = layer.call
    v = call.filter.arguments[1] if call.filter is not None else getattr(call.values, "value", None)
    y = call.node.value
    if A is not None and v is not None and y is not None:
        v, y = layer.flatten_map(v), layer.flatten_map(y)
        v = v.repeat_interleave(max(1, A.shape[1] // v.shape[1]), 1)  # groups of heads share values
        error = max(1e-3, 4 * torch.finfo(y.dtype).eps) * y.abs().amax()
        if A.shape[:3] == v.shape[:3] and v.shape == y.shape and ((A @ v - y).abs() <= error).all():
            average = partial(masked_mean, valid=A.abs() >= SMALLEST_WEIGHT)
            return Host(A.__matmul__, v, average)
    return None


def _differentiate_place(
    made: nn.Module, args: tuple[Any, ...], grads: Iterable[Tensor]
) -> Iterator[tuple[str, list[float]]]:
    """Yield the derivatives by each coefficient; without one, by c in H_c = (1 - c) A + c H."""
    named = (*made.named_parameters(), *made.named_buffers(recurse=False))
    weights = {name: weight.requires_grad_() for name, weight in named}
    y = made(*args)
    if not weights:
        weights = {"c": y.new_zeros(()).requires_grad_()}
        y = weights["c"] * (y - apply_operator(*args))
    rows = [torch.autograd.grad(y, [*weights.values()], g, retain_graph=True) for g in grads]
    for name, pair in zip(weights, zip(*rows, strict=True), strict=True):
        yield name, [moves.sum().item() for moves in pair]


@torch.no_grad()
def _form_map(layer: Layer) -> Tensor | None:
    A = form_map(layer.call)
    return None if A is None else layer.flatten_map(A)


def _fit_mask(x: Tensor, mask: Tensor | None, layer: Layer, A: Tensor | None) -> Tensor | None:
    mask = find_valid_tokens(layer, A) if mask is None and A is not None else mask
    return mask if mask is not None and mask.shape == x.shape[:2] else None
