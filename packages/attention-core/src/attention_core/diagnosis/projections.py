"""Find the value and output weights of an attention call in a recorded pass.

The value projection is the linear map whose outputs hold the values, and the output projection the
one that takes the result. Both are verified on the tokens, so that weights are right or not found.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from attention_core.diagnosis.attention import TORCH, AttentionCall
from attention_core.diagnosis.record import RESHAPES, Graph, Node

_NUM_TOKENS = 8  # to compare: as many numbers tell two channels apart
_SELECTIONS = ("chunk", "split", "unbind", "getitem", "repeat_interleave", "select", "narrow")
_MAX_STEPS = 24


class Projections(NamedTuple):
    """The value and output weights of an attention with its number of heads.

    Shapes: value (H d, D), output (D, H d) for H heads.
    """

    value: Tensor
    output: Tensor
    num_heads: int


class ProjectedTokens(NamedTuple):
    """The projections of a call, and the tokens that enter the first and leave the second."""

    projections: Projections
    x: Tensor
    y: Tensor


class Projection(NamedTuple):
    """The linear maps of a call: each with its weight, its input and its output.

    In torch's one function both have the call as output.
    """

    value: Node
    output: Node

    def list_nodes(self) -> Iterator[Node]:
        """Yield the nodes whose values are needed."""
        for node in self:
            yield from (node, *node.parents)


def find_projection(graph: Graph, call: AttentionCall) -> Projection | None:
    """Return the linear maps before the values and behind the result of a call."""
    if call.kind == TORCH:
        return Projection(call.node, call.node)
    value = None if call.values is None else _find_linear(call.values)
    output = _find_output(graph, call)
    return None if value is None or output is None else Projection(value, output)


def _find_linear(node: Node) -> Node | None:
    for _ in range(_MAX_STEPS):
        if _find_weight(node) is not None:
            return node
        known = [parent for parent in node.parents if not parent.is_constant]
        if node.name not in (*RESHAPES, *_SELECTIONS, "cat") or len(known) != 1:
            return None
        node = known[0]
    return None


def _find_output(graph: Graph, call: AttentionCall) -> Node | None:
    seen = {call.node}
    for node in graph.nodes[call.node.index + 1 :]:
        known = [parent for parent in node.parents if not parent.is_constant]
        if len(known) != 1 or known[0] not in seen:
            continue
        if _find_weight(node) is not None:
            return node
        if node.name in (*RESHAPES, "dropout", "getitem"):
            seen.add(node)
    return None


def _find_weight(node: Node) -> tuple[Node, Node, bool] | None:
    """Return the input and weight of a linear map, and True if the weight is (inputs, outputs)."""
    places = {"linear": (0, 1, False), "addmm": (1, 2, True), "matmul": (0, 1, True)}
    if node.name not in places:
        return None
    first, second, is_transposed = places[node.name]
    x = node.read_argument(first, "input")
    weight = node.read_argument(second, "weight")
    if not isinstance(weight, Node) or not weight.is_constant or len(weight.shape) != 2:
        return None
    return (x, weight, is_transposed) if isinstance(x, Node) else None


def read_projections(
    found: Projection | None, call: AttentionCall, shape: tuple[int, int, int]
) -> ProjectedTokens | None:
    r"""Return the projections of a call and its tokens, None where they are not found.

    .. math:: y = [A_1 x W_V^1, \ldots, A_H x W_V^H] \, W_O + 1 b^\top

    `shape` is (batch, heads, tokens) of the call's map, windows counted as samples. Groups of
    heads that share values have their weights repeated.
    """
    if found is None:
        return None
    if call.kind == TORCH:
        return _read_torch(call, shape)
    value = _read_value(found.value, call, shape)
    z = call.node.value
    linear = _find_weight(found.output)
    if value is None or z is None or linear is None or found.output.value is None:
        return None
    entered, weight, is_transposed = linear
    rows = _to_rows(entered.value, shape)
    heads = _to_rows(_move_heads(z, shape), shape)
    if rows is None or heads is None or not _are_close(rows, heads):
        return None
    y = _to_rows(found.output.value, shape)
    assert weight.value is not None
    output = weight.value.T if is_transposed else weight.value
    if y is None:
        return None
    return ProjectedTokens(Projections(value[0], output.detach(), shape[1]), value[1], y)


def _read_torch(call: AttentionCall, shape: tuple[int, int, int]) -> ProjectedTokens | None:
    node = call.node
    packed, own = node.read_argument(5, "in_proj_weight"), node.kwargs.get("v_proj_weight")
    tokens, output = call.values, node.read_argument(11, "out_proj_weight")
    found = [tokens, own if isinstance(own, Node) else packed, output, node]
    values = [x.value for x in found if isinstance(x, Node) and x.value is not None]
    if len(values) < len(found):
        return None
    x, weight, W, y = values
    V = weight if isinstance(own, Node) else weight.chunk(3)[2]
    projections = Projections(V.detach(), W.detach(), shape[1])
    return ProjectedTokens(projections, x.transpose(0, 1), y.transpose(0, 1))


def _read_value(
    linear: Node, call: AttentionCall, shape: tuple[int, int, int]
) -> tuple[Tensor, Tensor] | None:
    found, v = _find_weight(linear), None if call.values is None else call.values.value
    if found is None or v is None or linear.value is None:
        return None
    entered, weight, is_transposed = found
    rows, x = _to_rows(linear.value, shape), _to_rows(entered.value, shape)
    moved = _move_heads(v, shape)
    if rows is None or x is None or moved is None or weight.value is None:
        return None
    few = moved[0, :_NUM_TOKENS]  # (T, G d)
    # in double precision: torch.cdist has no half precision on a CPU
    distance = torch.cdist(few.mT.double(), rows[0, :_NUM_TOKENS].mT.double(), p=torch.inf)
    closest = distance.min(-1)
    if not (closest.values <= _find_tolerance(few)).all():
        return None
    W = (weight.value.T if is_transposed else weight.value).detach()[closest.indices]
    groups = v.shape[-3] if v.ndim > 3 else shape[1]
    if groups != shape[1]:
        heads = W.reshape(groups, -1, W.shape[1])
        W = heads.repeat_interleave(shape[1] // groups, 0).flatten(0, 1)
    return W, x


def _move_heads(v: Tensor, shape: tuple[int, int, int]) -> Tensor | None:
    """Return values or results (..., heads, N, d) as (B, N, heads d)."""
    B, _, N = shape
    if v.shape[-2] != N and v.ndim == 4 and v.shape[1] == N:  # (B, N, heads, d) of an einsum
        return v.flatten(2)
    if v.ndim == 3:
        v = v.reshape(B, -1, *v.shape[1:]) if v.shape[0] != B else v.unsqueeze(1)
    v = v.flatten(0, -4)
    return v.transpose(1, 2).flatten(2) if v.shape[-2] == N else None


def _to_rows(x: Tensor | None, shape: tuple[int, int, int]) -> Tensor | None:
    """Return tokens as (B, N, channels), None for any other tensor."""
    B, _, N = shape
    if x is None or x.numel() != B * N * x.shape[-1]:
        return None
    if x.ndim == 3 and x.shape[:2] == (N, B) and N != B:
        return x.transpose(0, 1)
    return x.reshape(B, N, x.shape[-1])


def _find_tolerance(x: Tensor) -> Tensor:
    return 16 * torch.finfo(x.dtype).eps * x.abs().amax()


def _are_close(x: Tensor, y: Tensor) -> bool:
    if x.shape != y.shape:
        return False
    x, y = x[0, :_NUM_TOKENS], y[0, :_NUM_TOKENS]
    return bool((x - y).abs().amax() <= _find_tolerance(y))
