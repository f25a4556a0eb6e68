"""Maps given by two factors, by eigenvalues, or by the attention function of another library."""

from collections.abc import Callable

import torch
from torch import Tensor

from attention_core.checks import check_ints, check_numbers, check_tensors
from attention_core.operators.base import LinearMap, check_values


class LowRank(LinearMap):
    r"""A map of rank r as a product of two factors: linear attention.

    .. math:: A = L R^\top, \qquad A v = L (R^\top v)

    Shapes: left (B, H, N, r), right (B, H, M, r); mask (B, 1, 1, M) boolean is True for valid keys
    (the factors must be zero elsewhere; the mask defines the average). O(N r D) time.

    Source: Katharopoulos et al. 2020, https://arxiv.org/abs/2006.16236

    >>> LowRank(torch.ones(2, 1), torch.full((2, 1), 0.5)) @ torch.tensor([[1.0], [3.0]])
    tensor([[2.],
            [2.]])
    """

    def __init__(self, left: Tensor, right: Tensor, mask: Tensor | None = None) -> None:
        check_tensors("LowRank", 2, left=left, right=right)
        if left.shape[-1] != right.shape[-1]:
            raise ValueError(
                "two factors must have one rank, got the shapes "
                f"{tuple(left.shape)} and {tuple(right.shape)}"
            )
        self.left, self.right, self.mask, self.like = left, right, mask, right

    def __matmul__(self, v: Tensor) -> Tensor:
        """Contract the tokens first: (r, D), then (N, D)."""
        check_values(v, self.right.shape[-2])
        return self.left @ (self.right.mT @ v)


class Diagonal(LinearMap):
    r"""A map in its own eigenbasis: `filter(Diagonal(lam), ones)` is the filter's response.

    .. math:: A = \mathrm{diag}(\lambda)

    Shapes: values (..., N). `dc` is the index of the constant eigenvector, the only component that
    an average keeps; None where the constant signal is no eigenvector.

    Source: Shuman et al., eq. 14, https://arxiv.org/abs/1211.0053

    >>> Diagonal(torch.tensor([1.0, 0.5])) @ torch.ones(2, 1)
    tensor([[1.0000],
            [0.5000]])
    """

    def __init__(self, values: Tensor, dc: int | None = None) -> None:
        check_tensors("Diagonal", 1, values=values)
        if dc is not None:
            check_ints("Diagonal", 0, values.shape[-1] - 1, dc=dc)
        self.values, self.dc, self.like = values, dc, values.unsqueeze(-1)

    def __matmul__(self, v: Tensor) -> Tensor:
        """Scale each component by its eigenvalue."""
        check_values(v, self.values.shape[-1])
        return self.values.unsqueeze(-1) * v

    def average(self, v: Tensor) -> Tensor:
        """Keep the constant component alone."""
        constant = torch.zeros_like(v)
        if self.dc is not None:
            constant[..., self.dc, :] = v[..., self.dc, :]
        return constant


class Host(LinearMap):
    """A map given by the attention function of another library, with q, k and masks bound.

    Shapes: `apply` maps values (B, H, M, D) to (B, H, N, D) linearly; `like` is a tensor of values
    that gives batch, heads, tokens, dtype and device. `average` is the mean over all keys by
    default: pass the library's own masked mean where there is a mask. `dropout` is not applied
    here: `filters.dropout_on_H` drops entries of H with it.

    >>> A = Host(lambda v: 0.5 * v, like=torch.ones(1, 1, 2, 1))
    >>> A.dense()
    tensor([[[[0.5000, 0.0000],
              [0.0000, 0.5000]]]])
    """

    def __init__(
        self,
        apply: Callable[[Tensor], Tensor],
        like: Tensor,
        average: Callable[[Tensor], Tensor] | None = None,
        dropout: float = 0.0,
    ) -> None:
        if dropout != 0:
            check_numbers("Host", 0, 1, dropout=dropout)
        self.apply, self.like, self._average, self.dropout = apply, like, average, dropout

    def __matmul__(self, v: Tensor) -> Tensor:
        """Call the library's attention function."""
        return self.apply(v)

    def average(self, v: Tensor) -> Tensor:
        """Average v over the allowed keys, as the library defines them."""
        return v.mean(-2, keepdim=True) if self._average is None else self._average(v)
