"""Find the value and output weights of an attention call, and verify them on its tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attention_core.diagnosis.attention import TORCH, AttentionCall
from attention_core.diagnosis.record import RESHAPES, Graph, Node

_NUM_TOKENS = 8  # to compare: as many numbers tell two channels apart
_SELECTIONS = ("chunk", "split", "unbind", "getitem", "repeat_interleave", "select", "narrow")
_MAX_STEPS = 24
# the places of the input and the weight of a linear map, and True for a weight (inputs, outputs)
_LINEAR = {"linear": (0, 1, False), "addmm": (1, 2, True), "matmul": (0, 1, True)}
_Shape = Sequence[int]  # (B, heads, N, N) of a map; windows count as samples


class ProjectedTokens(NamedTuple):
    """The value and output weights of a call, with the tokens before and behind them.

    Shapes: value (H d, D), output (D, H d) for H heads.
    """

    value: Tensor
    output: Tensor
    num_heads: int
    x: Tensor
    y: Tensor


class Projection(NamedTuple):
    """The linear maps of a call, each by its output; in torch's one function both are the call."""

    value: Node
    output: Node


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
    if node.name not in _LINEAR:
        return None
    first, second, is_transposed = _LINEAR[node.name]
    x, weight = node.read_argument(first, "input"), node.read_argument(second, "weight")
    if not isinstance(weight, Node) or not weight.is_constant or len(weight.shape) != 2:
        return None
    return (x, weight, is_transposed) if isinstance(x, Node) else None


def read_projections(
    found: Projection | None, call: AttentionCall, shape: _Shape
) -> ProjectedTokens | None:
    r"""Return the projections of a call and its tokens, None where they are not found.

    .. math:: y = [A_1 x W_V^1, \ldots, A_H x W_V^H] \, W_O + 1 b^\top

    Groups of heads that share values have their weights repeated.
    """
    if found is None or call.values is None:
        return None
    node = call.node
    if call.kind == TORCH:
        own, packed = node.kwargs.get("v_proj_weight"), node.read_argument(5, "in_proj_weight")
        V = packed.value.chunk(3)[2] if own is None else own.value
        W = node.read_argument(11, "out_proj_weight").value
        x, y = (t.value.transpose(0, 1) for t in (call.values, node))
        return ProjectedTokens(V.detach(), W.detach(), shape[1], x, y)
    (x, own, V), (z, y, W) = (_read_linear(node, shape) for node in found)
    v, heads = (_move_heads(node.value, shape) for node in (call.values, call.node))
    if x is None or own is None or z is None or y is None or v is None or heads is None:
        return None
    few, own = v[0, :_NUM_TOKENS], own[0, :_NUM_TOKENS]  # (T, G d)
    # in double precision: torch.cdist has no half precision on a CPU
    closest = torch.cdist(few.mT.double(), own.mT.double(), p=torch.inf).min(-1)
    joined, result = z[0, :_NUM_TOKENS], heads[0, :_NUM_TOKENS]
    if not (closest.values <= _find_tolerance(few)).all() or joined.shape != result.shape:
        return None
    if not (joined - result).abs().amax() <= _find_tolerance(result):
        return None
    V = V[closest.indices]
    groups = len(V) * shape[1] // heads.shape[-1]  # their heads have the channels of each map
    V = V.reshape(groups, -1, V.shape[1]).repeat_interleave(shape[1] // groups, 0).flatten(0, 1)
    return ProjectedTokens(V, W, shape[1], x, y)


def _read_linear(node: Node, shape: _Shape) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Return the tokens before and behind a linear map, and its weight (outputs, inputs)."""
    found = _find_weight(node)
    assert found is not None
    entered, weight, is_transposed = found
    W: Tensor = (weight.value.T if is_transposed else weight.value).detach()
    return arrange_rows(entered.value, shape), arrange_rows(node.value, shape), W


def _move_heads(v: Tensor, shape: _Shape) -> Tensor | None:
    """Return values or results (..., heads, N, d) as (B, N, heads d)."""
    B, _, N, _ = shape
    if v.shape[-2] != N and v.ndim == 4 and v.shape[1] == N:  # (B, N, heads, d) of an einsum
        return v.flatten(2)
    if v.ndim == 3:
        v = v.reshape(B, -1, *v.shape[1:]) if v.shape[0] != B else v.unsqueeze(1)
    v = v.flatten(0, -4)
    return v.transpose(1, 2).flatten(2) if v.shape[-2] == N else None


def arrange_rows(x: Tensor | None, shape: _Shape) -> Tensor | None:
    """Return tokens as (B, N, channels), None for any other tensor."""
    B, _, N, _ = shape
    if x is None or x.numel() != B * N * x.shape[-1]:
        return None
    if x.ndim == 3 and x.shape[:2] == (N, B) and N != B:
        return x.transpose(0, 1)
    return x.reshape(B, N, x.shape[-1])


def _find_tolerance(x: Tensor) -> Tensor:
    return 16 * torch.finfo(x.dtype).eps * x.abs().amax()
