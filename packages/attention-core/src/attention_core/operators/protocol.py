"""What `A @ v` means for each way of holding an attention map A.

Shapes throughout: B batch, H heads, N queries, M keys, D head width, r rank. Values v are
(B, H, M, D). A map is square (N = M) in self-attention, which is all that a filter of A can use.
A plain tensor (B, H, N, M) is an operator as it stands; its keys are all taken as attended to.
"""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

FORBIDDEN = -9e3  # an additive mask at or below this forbids


@runtime_checkable
class Operator(Protocol):
    """Anything that maps values to values linearly, `A @ v`.

    Source: Shuman et al., https://arxiv.org/abs/1211.0053 (attention as a graph shift operator).

    >>> isinstance(torch.eye(3), Operator)
    True
    """

    def __matmul__(self, v: Tensor, /) -> Tensor:
        """Apply the map to values (B, H, M, D), giving (B, H, N, D)."""


class Fixed:
    """What a kernel puts out whatever the values are: no map, so that `Plain` alone can apply it.

    Shapes: output (B, H, N, D). `propagate` refuses it, and with it every filter.

    Source: https://arxiv.org/abs/2305.19798 (Primalformer has no values)

    >>> Fixed(torch.ones(1, 1, 2, 1)) @ torch.zeros(1, 1, 2, 1)
    tensor([[[[1.],
              [1.]]]])
    """

    def __init__(self, output: Tensor) -> None:
        self.output = output

    def __matmul__(self, v: Tensor) -> Tensor:
        """Leave the values aside."""
        return self.output

    def eye(self) -> Tensor:
        """Raise ValueError: what does not depend on values has no map to look at."""
        raise ValueError("this kernel has no values, and so no map to look at")


def apply(A: Operator, v: Tensor) -> Tensor:
    """`A @ v`, spelled so that torch.compile traces it: of our classes it knows methods alone.

    Source: torch/_dynamo/variables/builtin.py of torch 2.11, where matmul is no binary operator

    >>> apply(torch.eye(2), torch.ones(2, 1)).flatten()
    tensor([1., 1.])
    """
    return A.__matmul__(v)


def average(A: Operator, v: Tensor) -> Tensor:
    r"""Mean of the values over the keys that each query may attend to: the low-pass part of A.

    .. math:: J v, \quad J_{ij} = [j \text{ allowed for } i] / |\text{allowed for } i|

    Shapes: v (B, H, M, D) -> (B, H, 1, D) where all queries share their keys, else (B, H, N, D).
    A plain tensor carries no mask: all of its keys count.

    Source: Wang et al. 2022, eq. 7, https://arxiv.org/abs/2203.05962

    >>> average(torch.eye(2), torch.tensor([[1.0], [3.0]]))
    tensor([[2.]])
    """
    if isinstance(A, Tensor):
        return v.mean(-2, keepdim=True)
    return A.average(v)  # type: ignore[attr-defined]


def propagate(A: Operator, v: Tensor) -> Tensor:
    """Apply a square A, the only kind whose powers exist.

    Raises ValueError with the two lengths where A is not square, and for what is no map of values.

    Source: Choi et al. 2024, eq. 7, https://arxiv.org/abs/2312.04234

    >>> propagate(torch.full((2, 2), 0.5), torch.tensor([[1.0], [3.0]])).flatten()
    tensor([2., 2.])
    """
    if isinstance(A, Fixed):
        raise ValueError("a filter of A needs a map of values: this kernel has none; use Plain")
    Av = apply(A, v)
    if Av.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"a filter of A needs self-attention: got {Av.shape[-2]} queries and {v.shape[-2]} "
            "keys; use Plain for cross-attention and class attention"
        )
    return Av


def support(mask: Tensor) -> Tensor:
    """Which pairs a mask allows: a boolean mask says so, a float mask forbids by a huge negative.

    Libraries forbid by -inf, finfo.min (transformers), -1e9 (LRA) or -1e4 (BERT), whatever dtype
    the mask is then cast to; a bias (relative positions, Swin's soft -100) allows what it lowers.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html

    >>> support(torch.tensor([0.0, -3.0, float("-inf"), torch.finfo(torch.float32).min]))
    tensor([ True,  True, False, False])
    """
    return mask if mask.dtype == torch.bool else mask > FORBIDDEN


def masked_mean(v: Tensor, keep: Tensor | None) -> Tensor:
    """Mean over the tokens that `keep` names: all where it is None, zero where it names none.

    Shapes: v (..., M, D), keep (..., 1, M) boolean -> (..., 1, D).

    Source: Wang et al. 2022, eq. 7, https://arxiv.org/abs/2203.05962

    >>> masked_mean(torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([[True, True, False]]))
    tensor([[2.]])
    """
    if keep is None:
        return v.mean(-2, keepdim=True)
    ones = keep.to(torch.promote_types(v.dtype, torch.float32))
    return (ones / ones.sum(-1, keepdim=True).clamp(min=1)).to(v.dtype) @ v


def identity(like: Tensor, size: int) -> Tensor:
    """The identity as values, with the leading axes of `like`, (..., size, size).

    Source: eq. 3 of https://arxiv.org/abs/2312.04234 (a filter's map is what it does to I)

    >>> identity(torch.zeros(1, 7, 3), 2)
    tensor([[[1., 0.],
             [0., 1.]]])
    """
    eye = torch.eye(size, dtype=like.dtype, device=like.device)
    return eye.expand(*like.shape[:-2], size, size)
