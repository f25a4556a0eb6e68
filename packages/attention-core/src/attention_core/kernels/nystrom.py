"""Nystromformer (Xiong et al. 2021), https://arxiv.org/abs/2102.03902"""

from typing import Literal

import torch
from torch import Tensor, nn

from attention_core.kernels.factored import Convolved, Factored, depthwise
from attention_core.kernels.parts import choose, exact, key_mask, real, wide
from attention_core.operators import Softmax

Init = Literal["per_matrix", "original"]
Segments = Literal["real", "published"]


def averages(keep: Tensor, landmarks: int, dtype: torch.dtype = torch.float32) -> Tensor:
    r"""The matrix that averages the real tokens in consecutive segments of nearly equal size.

    .. math:: P_{st} = [\lfloor r_t m / n \rfloor = s] / \sum_u [\lfloor r_u m / n \rfloor = s]

    with r_t the number of real tokens before t and n their total. Of fewer than m real tokens each
    is a segment by itself, and the rows of the empty segments are zero.

    Shapes: keep (B, 1, 1, N) boolean -> (B, 1, m, N).

    Source: https://arxiv.org/abs/2102.03902, for lengths that m divides

    >>> averages(torch.tensor([True, True, False, True, True]), 2)
    tensor([[0.5000, 0.5000, 0.0000, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.0000, 0.5000, 0.5000]])
    """
    rank, total = keep.cumsum(-1) - 1, keep.sum(-1, keepdim=True).clamp(min=1)
    segment = torch.div(rank * landmarks, total, rounding_mode="floor")
    member = (segment == torch.arange(landmarks, device=keep.device)[:, None]) & keep
    return member / member.sum(-1, keepdim=True, dtype=dtype).clamp(min=1)


def pseudo_inverse(A: Tensor, iterations: int = 6, init: Init = "per_matrix") -> Tensor:
    r"""The Moore-Penrose inverse by an iteration of third order, products of matrices alone.

    .. math::
        Z \leftarrow \tfrac14 Z (13 I - AZ (15 I - AZ (7 I - AZ))), \qquad
        Z_0 = A^\top / (\|A\|_1 \|A\|_\infty)

    The norms are each matrix's own, which ensures convergence. `original`, as published, divides
    by the largest column sum of the whole batch: right for softmax maps, whose rows sum to 1, but
    a sample's result then depends on the others. Six steps do not suffice for nearly singular A.

    Shapes: A (..., m, m) -> (..., m, m).

    Source: https://arxiv.org/abs/2102.03902

    >>> pseudo_inverse(torch.tensor([[0.75, 0.25], [0.25, 0.75]]))
    tensor([[ 1.5000, -0.5000],
            [-0.5000,  1.5000]])
    """
    columns = A.abs().sum(-2).amax(-1)[..., None, None]
    if init == "original":
        Z = A.mT / columns.max()
    else:
        Z = A.mT / (columns * A.abs().sum(-1).amax(-1)[..., None, None])
    for _ in range(iterations):
        AZ = A @ Z
        Z = (13 * Z - Z @ (15 * AZ - AZ @ (7 * AZ - AZ @ AZ))) / 4
    return Z


class Nystromformer(nn.Module):
    r"""The softmax map through landmarks, and a convolution of the values; linear in N.

    .. math::
        A v = K_1 K_2^+ (K_3 v) + w * v, \quad K_1 = \sigma(q \tilde k^\top), \quad
        K_2 = \sigma(\tilde q \tilde k^\top), \quad K_3 = \sigma(\tilde q k^\top)

    with sigma a row softmax of logits over sqrt(d), and landmarks that are means of segments. Up
    to `landmarks` real tokens it is the exact softmax map, sample by sample. `kernel_size` 0
    leaves the convolution out; `init` and `iterations` are those of `pseudo_inverse`.

    `segments` "real" is ours: any length, segments of nearly equal size over the real tokens,
    so that padding equals truncation. "published" cuts the padded length instead, its masked
    zeros included in the means and its segments of padding in the normalisers.

    Shapes: q, k (B, H, N, d), x unused, mask (B, N) or (B, 1, 1, N), True where a token is real.
    Time O(N m d + m^3), memory O(N m) for m landmarks, in float32 at least; never causal.

    Raises ValueError for an unknown choice, for an even kernel_size, for fewer than 1 landmark,
    and, as published, for a length that the landmarks do not divide.

    Source: https://arxiv.org/abs/2102.03902

    >>> A = Nystromformer(8, 2, landmarks=3, kernel_size=0)(*torch.randn(2, 1, 2, 7, 4), None)
    >>> A.left.shape, A.core.shape, A.right.shape
    (torch.Size([1, 2, 7, 3]), torch.Size([1, 2, 3, 3]), torch.Size([1, 2, 7, 3]))
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        landmarks: int = 64,
        kernel_size: int = 35,
        init: Init = "per_matrix",
        iterations: int = 6,
        segments: Segments = "real",
    ) -> None:
        super().__init__()
        if landmarks < 1 or iterations < 1:
            raise ValueError(
                f"Nystromformer's landmarks and iterations must be at least 1, "
                f"got {landmarks} and {iterations}"
            )
        choose("Nystromformer's init", init, ("per_matrix", "original"))
        choose("Nystromformer's segments", segments, ("real", "published"))
        self.landmarks, self.init, self.iterations = landmarks, init, iterations
        self.segments = segments
        self.conv = depthwise(num_heads, kernel_size)

    def forward(
        self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None
    ) -> Softmax | Factored | Convolved:
        """Generate the map of these tokens."""
        keep, n = key_mask(mask), q.shape[-2]
        if self.segments == "published" and n % self.landmarks:
            raise ValueError(
                f"{n} tokens are no multiple of {self.landmarks} landmarks, as published "
                "Nystromformer needs; choose segments real"
            )
        few = n <= self.landmarks
        A = Softmax(q, k, keep) if few else self.approximate(q, k, keep)
        return A if self.conv is None else Convolved(A, self.conv, keep)

    def approximate(self, q: Tensor, k: Tensor, keep: Tensor | None) -> Factored:
        """The map without the convolution, for more tokens than landmarks."""
        with exact(q):
            q, k = (wide(t) * t.shape[-1] ** -0.25 for t in (q, k))
            if keep is None:
                pool = self._pool(q.new_ones(1, 1, 1, q.shape[-2], dtype=torch.bool), q.dtype)
                mean_q, mean_k = pool @ q, pool @ k
                K1, K2 = ((t @ mean_k.mT).softmax(-1) for t in (q, mean_q))
                K3 = (mean_q @ k.mT).softmax(-1)
            else:
                K1, K2, K3 = self._masked(q, k, keep)
            return Factored(K1, pseudo_inverse(K2, self.iterations, self.init), K3.mT, keep)

    def _masked(self, q: Tensor, k: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The three maps where some tokens are padding, and some samples perhaps short."""
        q, k = real(q, keep), real(k, keep)
        least, pool = torch.finfo(q.dtype).min, self._pool(keep, q.dtype)
        mean_q, mean_k = pool @ q, pool @ k
        K1, K2 = q @ mean_k.mT, mean_q @ mean_k.mT
        K3 = (mean_q @ k.mT).masked_fill(~keep, least).softmax(-1)
        if self.segments == "published":
            return K1.softmax(-1), K2.softmax(-1), K3
        filled = (pool.sum(-1) > 0).unsqueeze(-2)  # (B, 1, 1, m)
        K1 = K1.masked_fill(~filled, least).softmax(-1) * keep.mT
        # each token its own landmark: K1 is the exact map if K2 and K3 merely pass the values on
        short = keep.sum(-1, keepdim=True) <= self.landmarks  # (B, 1, 1, 1)
        eye = torch.eye(self.landmarks, dtype=q.dtype, device=q.device)
        return K1, torch.where(short, eye, K2.softmax(-1)), torch.where(short, pool, K3)

    def _pool(self, keep: Tensor, dtype: torch.dtype) -> Tensor:
        if self.segments == "published":
            return averages(torch.ones_like(keep), self.landmarks, dtype) * keep
        return averages(keep, self.landmarks, dtype)
