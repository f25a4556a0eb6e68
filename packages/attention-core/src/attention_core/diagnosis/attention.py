"""Find the attention maps of a recorded pass, whichever functions apply them, and form them."""

from collections.abc import Iterable
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from attention_core import spectral
from attention_core.diagnosis.record import RESHAPES, Graph, ModuleCall, Node
from attention_core.filters.plain import Plain
from attention_core.kernels.common import at_least_float32
from attention_core.operators import Softmax, ValueFreeOutput

FUSED = "scaled_dot_product_attention"
TORCH = "multi_head_attention_forward"
PRODUCTS = ("matmul", "bmm", "einsum")
# functions between the softmax, or the product of queries and keys, and the values
_MAP_FUNCTIONS = {
    *RESHAPES,
    *("dropout", "mul", "div", "add", "sub", "masked_fill", "where", "nan_to_num", "relu", "exp"),
    *("conv2d", "linear", "batch_norm", "layer_norm", "instance_norm", "normalize", "softmax"),
    *("pad", "getitem", "split", "cat", "softplus", "sigmoid", "square", "pow", "tanh", "cos"),
    *("clamp", "clamp_min", "log_softmax", "setitem"),
}
_MAX_STEPS = 24  # between the values and the product of queries and keys


@dataclass(eq=False, repr=False)
class AttentionCall:
    """One product of a map and values; `node` is its result.

    `kind` is the function that makes it: a filter, torch's two functions, or a product of the
    tensors `map`, whose axes (..., query, key) are `axes`, and `values`. `shape` is the map's.
    `may_pad` is False if no mask reaches the map that may differ between the samples.
    """

    node: Node
    kind: str
    keys: list[Node]
    shape: tuple[int, ...]
    name: str
    filter: ModuleCall | None = None
    map: Node | None = None
    values: Node | None = None
    axes: tuple[int, ...] = ()
    may_pad: bool = True

    @property
    def is_square(self) -> bool:
        """Return True for a map of more than one token onto as many."""
        return self.shape[-1] == self.shape[-2] > 1

    def list_operands(self) -> list[Node]:
        """Return the nodes whose values `form_maps` and projections need."""
        return [*self.node.parents, self.node, *([] if self.values is None else [self.values])]


def find_attention_calls(graph: Graph) -> list[AttentionCall]:
    """Return the attention calls of a pass in their order."""
    filters = [call for call in graph.calls if call.arguments and call.outputs]
    found = [call for made in filters if (call := _read_filter(graph, made)) is not None]
    inside = [(made.start, made.end) for made in filters]
    inside += [(c.start, c.end) for c in graph.calls if c.name.rpartition(".")[2] == "tokens"]
    outside = [x for x in graph.nodes if not any(a <= x.index < b for a, b in inside)]
    found += [call for node in outside if (call := _read_node(node)) is not None]
    return sorted(found, key=lambda call: call.node.index)


def _read_filter(graph: Graph, made: ModuleCall) -> AttentionCall | None:
    operator, v = made.arguments
    node = made.outputs[0]
    if not isinstance(v, Tensor) or v.ndim < 3:
        return None
    values = graph.find_node(v)
    k = graph.find_node(operator.k) if isinstance(getattr(operator, "k", None), Tensor) else None
    keys = [x for x in (k, values) if x is not None]
    shape, name = (*node.shape[:-1], v.shape[-2]), made.name.rpartition(".")[0]
    mask = getattr(operator, "mask", v)  # another operator may have one
    found = [] if mask is None else [graph.find_node(mask)]
    return AttentionCall(node, "filter", keys, shape, name, filter=made, values=values,
                         may_pad=_find_padding(found, shape[0]))  # fmt: skip


def _read_node(node: Node) -> AttentionCall | None:
    name = node.modules[-1] if node.modules else ""
    if node.name in PRODUCTS:
        return _read_product(node, name)
    if node.name not in (FUSED, TORCH):
        return None
    q, k, v = (node.read_argument(i, key) for i, key in enumerate(("query", "key", "value")))
    shape: tuple[int, ...] = (*q.shape[:-1], k.shape[-2])
    masks = [node.read_argument(3, "attn_mask")]
    if node.name == TORCH:
        if node.shape != q.shape or len(node.shape) < 3:
            return None  # the averaged map, or a single sample
        shape = (q.shape[1], node.read_argument(4, "num_heads"), q.shape[0], k.shape[0])
        masks = [node.read_argument(*x) for x in ((14, "key_padding_mask"), (16, "attn_mask"))]
    may_pad = _find_padding(masks, shape[0])
    return AttentionCall(node, node.name, [k], shape, name, values=v, may_pad=may_pad)


def _find_padding(masks: Iterable[Node | None], samples: int) -> bool:
    """Return True if a mask depends on the batch, or has its samples: it may be of padding."""
    return any(x is not None and (not x.is_constant or x.shape[:1] == (samples,)) for x in masks)


def _read_product(node: Node, name: str) -> AttentionCall | None:
    operands = node.list_terms()
    if len(operands) != 2 or any(x.is_constant for x in operands):
        return None
    for place, (formed, values) in enumerate((operands, operands[::-1])):
        found = _find_keys(formed)
        if found is None or min(len(formed.shape), len(values.shape)) < 3:
            continue
        if axes := _find_axes(node, formed, values, place):
            shape = tuple(formed.shape[axis] for axis in axes)
            return AttentionCall(node, "product", [found[0]], shape, name, map=formed,
                                 values=values, axes=axes, may_pad=found[1])  # fmt: skip
    return None


def _find_keys(node: Node) -> tuple[Node, bool] | None:
    """Return the keys whose product with queries a map comes from, and `may_pad`, or None."""
    paths, seen = [[node]], set[tuple[Node, bool]]()
    while paths:
        node = (path := paths.pop())[-1]
        if node.name in PRODUCTS or node.name == "baddbmm":
            operands = node.list_terms()[-2:]
            if len(operands) == 2 and not any(x.is_constant for x in operands):
                others = {x for made in path for x in made.parents} - {*path, *operands}
                masks = [x for x in others if not x.descends_from({node})]  # not a topk of logits
                return operands[1], _find_padding(masks, path[0].shape[0])
        if len(path) == _MAX_STEPS or node.name not in (*_MAP_FUNCTIONS, *PRODUCTS):
            continue
        known = [parent for parent in node.parents if not parent.is_constant]
        known.sort(key=lambda parent: (parent.numel, -parent.index))
        names = {made.name for made in path}
        # a bias of queries may be older than their product with keys; the values are not the map's
        is_map = "softmax" in names and names.isdisjoint(("linear", *PRODUCTS))
        if (node, is_map) not in seen:
            paths += [[*path, parent] for parent in known[0 if is_map else -1 :]]
        seen.add((node, is_map))
    return None


def _find_axes(node: Node, formed: Node, values: Node, place: int) -> tuple[int, ...]:
    """Return the axes (..., query, key) of the map in a product, empty for another product."""
    if node.name != "einsum":
        *others, query, key = range(len(formed.shape))
        query, key = (query, key) if place == 0 else (key, query)
        length = values.shape[-2 if place == 0 else -1]
        return (*others, query, key) if formed.shape[key] == length else ()
    equation = node.args[0]
    if not isinstance(equation, str) or "->" not in equation:
        return ()
    equation = equation.replace(" ", "")
    more = len(formed.shape) - len(equation.split("->")[0].split(",")[place].replace("...", ""))
    left, output = equation.replace("...", ascii_uppercase[:more]).split("->")
    terms = left.split(",")
    map_axes, value_axes = terms[place], terms[1 - place]
    keys = [x for x in map_axes if x in value_axes and x not in output]
    queries = [x for x in map_axes if x in output and x not in value_axes][-1:]  # behind groups
    if len(keys) != 1 or not queries:
        return ()
    order = [x for x in map_axes if x not in keys + queries] + queries + keys
    return tuple(map_axes.index(x) for x in order)


def form_maps(call: AttentionCall) -> tuple[Tensor, Tensor] | None:
    """Return the map A of a call and the map H that is applied, None for a kernel without one."""
    A = form_map(call)
    if A is None or call.filter is None or isinstance(call.filter.module, Plain):
        return None if A is None else (A, A)
    filter: Any = call.filter.module
    return A, spectral.matrix(filter.forward, call.filter.arguments[0])


def form_map(call: AttentionCall) -> Tensor | None:
    """Return the map A of a call, None for a kernel without one."""
    node = call.node
    if call.filter is not None:
        operator = call.filter.arguments[0]
        return None if isinstance(operator, ValueFreeOutput) else spectral.matrix(Plain(), operator)
    if call.kind == FUSED:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = [_read_value(node.read_argument(i, name)) for i, name in enumerate(names)]
        q, k, _, mask, _, is_causal = given
        if k.shape[-3] != q.shape[-3]:
            k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
        shape = (*q.shape[:-1], k.shape[-2])
        if q.ndim == 3:  # (B H, N, d)
            q, k = q.unsqueeze(1), k.unsqueeze(1)
            mask = mask.unsqueeze(1) if mask is not None and mask.ndim == 3 else mask
        if mask is not None and mask.ndim >= q.ndim > 4:
            mask = mask.expand(*q.shape[:-1], mask.shape[-1]).flatten(0, -4)
        q, k, scale = q.flatten(0, -4), k.flatten(0, -4), node.kwargs.get("scale")
        return Softmax(q, k, mask, bool(is_causal), 0.0, scale).dense().reshape(shape)
    if call.kind == TORCH:
        args, kwargs = tree_map(_read_value, (node.args, node.kwargs))
        kwargs |= {"need_weights": True, "average_attn_weights": False, "training": False}
        if kwargs.get("attn_mask") is None:
            kwargs["is_causal"] = False
        # add_bias_kv and add_zero_attn append keys that are no tokens
        found = F.multi_head_attention_forward(*args, **kwargs)[1]
        return None if found is None else found[..., : call.shape[-1]]
    return _read_value(call.map).permute(call.axes)


def _read_value(value: Any) -> Any:
    value = value.value if isinstance(value, Node) else value
    is_float = isinstance(value, Tensor) and value.is_floating_point()
    return at_least_float32(value) if is_float else value  # half precision has no small weights
