"""Find the value and output weights of an attention, for every library in one way.

The value projection is the linear map whose outputs hold the values that the filter receives, and
the output projection the one whose input is what the filter returns. Both are verified on the
tokens of a forward pass, so that weights are either right or not found.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_core.diagnosis.recording import AttentionCall

_NUM_TOKENS = 8  # to compare: as many numbers tell two channels apart


class Projections(NamedTuple):
    """The value and output weights of an attention, and its filter.

    Shapes: value (H d, D), output (D, H d) for H heads; `filter` is called with A and values.
    """

    filter: nn.Module
    value: Tensor
    output: Tensor
    num_heads: int


class ProjectedTokens(NamedTuple):
    """The projections of a call, and the tokens that enter the first and leave the second."""

    projections: Projections
    x: Tensor
    y: Tensor


def find_projections(call: AttentionCall) -> ProjectedTokens | None:
    r"""Return the projections of an attention and its tokens, None where they are not found.

    .. math:: y = [A_1 x W_V^1, \ldots, A_H x W_V^H] \, W_O + 1 b^\top

    Groups of heads that share values have their weights repeated.
    """
    value, output = _find_value(call), _find_output(call)
    if value is None or output is None:
        return None
    found = Projections(call.attention.filter, value[0], output[0], call.num_heads)
    return ProjectedTokens(found, value[1], output[1])


def _find_value(call: AttentionCall) -> tuple[Tensor, Tensor] | None:
    v = call.v.transpose(1, 2).flatten(2)[0, :_NUM_TOKENS]  # (T, G d)
    for module, x, outputs in _list_linear_calls(call):
        weight = _read_weight(module)
        rows = call.to_batch_first(outputs)
        if weight is None or rows is None:
            continue
        rows = rows[0, :_NUM_TOKENS]
        # in double precision: torch.cdist has no half precision on a CPU
        distance = torch.cdist(v.mT.double(), rows.mT.double(), p=torch.inf)
        closest = distance.min(-1)
        if (closest.values <= _find_tolerance(v)).all():
            tokens = call.to_batch_first(x)
            assert tokens is not None
            return _repeat_groups(weight[closest.indices], call), tokens
    return None


def _find_output(call: AttentionCall) -> tuple[Tensor, Tensor] | None:
    z = call.z.transpose(1, 2).flatten(2)  # (B, N, H d)
    entered: dict[nn.Module, Tensor] = {}
    for event in call.events[call.position :]:
        weight = _read_weight(event.module)
        if weight is None:
            continue
        if event.is_input:
            entered[event.module] = event.tensor
        elif (x := entered.get(event.module)) is not None and x.shape[-1] == z.shape[-1]:
            rows = call.to_batch_first(x)
            if rows is None or not _are_close(rows, z):
                continue
            tokens = call.to_batch_first(event.tensor)
            return None if tokens is None else (weight, tokens)
    return None


def _list_linear_calls(call: AttentionCall) -> list[tuple[Any, Tensor, Tensor]]:
    """Return the linear modules before the filter with their inputs and outputs, newest first."""
    found: list[tuple[Any, Tensor, Tensor]] = []
    entered: dict[nn.Module, Tensor] = {}
    for event in call.events[: call.position]:
        if event.is_input:
            entered[event.module] = event.tensor
        elif event.module in entered and not event.is_changed:
            found.append((event.module, entered[event.module], event.tensor))
    x = call.events[call.start].tensor
    for holder in (call.attention, getattr(call.attention, "att", None)):
        weight = getattr(holder, "in_proj_weight", None)  # torch's and speechbrain's, no module
        if isinstance(weight, Tensor):
            bias = getattr(holder, "in_proj_bias", None)
            found.append((weight, x, F.linear(x, weight, bias)))
    return found[::-1]


def _read_weight(module: Any) -> Tensor | None:
    """Return the weight (outputs, inputs) of a linear map, None for any other module."""
    weight = module if isinstance(module, Tensor) else getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        return None
    if isinstance(module, nn.Embedding):
        return None
    return weight.T if type(module).__name__ == "Conv1D" else weight  # GPT-2's is (in, out)


def _repeat_groups(weight: Tensor, call: AttentionCall) -> Tensor:
    groups = call.v.shape[1]
    if groups == call.num_heads:
        return weight
    heads = weight.reshape(groups, -1, weight.shape[1])
    heads = heads.repeat_interleave(call.num_heads // groups, 0)
    return heads.flatten(0, 1)


def _find_tolerance(x: Tensor) -> Tensor:
    return 16 * torch.finfo(x.dtype).eps * x.abs().amax()


def _are_close(x: Tensor, y: Tensor) -> bool:
    x, y = x[0, :_NUM_TOKENS], y[0, :_NUM_TOKENS]
    return bool((x - y).abs().amax() <= _find_tolerance(y))
