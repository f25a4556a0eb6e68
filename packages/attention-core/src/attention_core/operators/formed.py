"""Maps that are formed: those of a learned bias on a CPU, and the dropout of any."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from attention_core.operators.dropped import LANES, kept


def is_learned(q: Tensor, k: Tensor, mask: Tensor | None) -> bool:
    """Whether a mask is a bias that learns, on a CPU, whose fused call would form the map."""
    return (
        mask is not None
        and mask.requires_grad
        and q.dtype == k.dtype == mask.dtype
        and q.device.type == k.device.type == mask.device.type == "cpu"
        and not is_traced()
        and not torch.is_autocast_enabled("cpu")
    )


def is_traced() -> bool:
    """Whether a compiler or a functional transform looks on, which custom gradients are not for.

    >>> is_traced()
    False
    """
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def biased(logits: Tensor, bias: Tensor) -> Tensor:
    r"""Softmax of logits and a bias, which keeps its own output and nothing else.

    .. math:: A = \mathrm{softmax}(\mathrm{logits} + \mathrm{bias})

    Shapes: logits (B, H, N, M), to which bias broadcasts -> (B, H, N, M). A bias of no more than
    the lowest finite number forbids; a row that may attend to nothing is zero.

    Source: https://arxiv.org/abs/2106.05234 (eq. 6, such a bias)

    >>> biased(torch.zeros(1, 1, 2, 2), torch.tensor([[0.0, -torch.inf], [0.0, 0.0]]))
    tensor([[[[1.0000, 0.0000],
              [0.5000, 0.5000]]]])
    """
    return _Biased.apply(logits, bias)  # type: ignore[no-untyped-call]


class _Biased(torch.autograd.Function):
    @staticmethod
    def forward(logits: Tensor, bias: Tensor) -> Tensor:
        lowest, total = torch.finfo(logits.dtype).min, logits + bias
        if (bias[..., :1] > lowest).all():  # no row is empty: the usual case, and cheap to see
            return total.softmax(-1)
        return total.clamp_(min=lowest).softmax(-1) * (bias.amax(-1, keepdim=True) > lowest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.shape = inputs[1].shape

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        (A,) = ctx.saved_tensors
        d = torch._softmax_backward_data(g.contiguous(), A, -1, A.dtype)
        return d, d.sum_to_size(ctx.shape)


def drop(A: Tensor, p: float, seed: int) -> Tensor:
    """A map on a CPU without some of its entries, the others scaled up; see `attend`.

    >>> drop(torch.ones(4), 0.0, seed=0)
    tensor([1., 1., 1., 1.])
    """
    threshold = round(p * LANES)
    if threshold == LANES or is_traced():
        return F.dropout(A, p)
    stays = kept(A.shape, threshold, torch.Generator().manual_seed(seed)).to(A.dtype)
    return A * stays.mul_(LANES / (LANES - threshold))
