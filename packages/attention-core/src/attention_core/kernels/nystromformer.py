"""Nystromformer (Xiong et al. 2021), https://arxiv.org/abs/2102.03902"""

from typing import Literal

import torch
from torch import Tensor

from attention_core.checks import check_choices, check_sizes
from attention_core.kernels.common import (
    Kernel,
    at_least_float32,
    autocast_disabled,
    key_mask,
    zero_padding,
)
from attention_core.kernels.landmark import LandmarkOperator, PlusConvolution, make_depthwise_weight
from attention_core.operators import Softmax

Init = Literal["per_matrix", "original"]
Segments = Literal["real", "published"]


def segment_mean_matrix(valid: Tensor, landmarks: int, dtype: torch.dtype) -> Tensor:
    r"""Build the matrix that averages valid tokens in consecutive segments of nearly equal size.

    .. math:: P_{st} = [\lfloor r_t m / n \rfloor = s] / \sum_u [\lfloor r_u m / n \rfloor = s]

    with r_t the number of valid tokens before t and n their total. Where there are fewer than m
    valid tokens, each is a segment, and the rows of the empty segments are zero.

    Shapes: valid (B, 1, 1, N) boolean -> (B, 1, m, N).

    Source: https://arxiv.org/abs/2102.03902, for lengths that m divides
    """
    rank, total = valid.cumsum(-1) - 1, valid.sum(-1, keepdim=True).clamp(min=1)
    segment = torch.div(rank * landmarks, total, rounding_mode="floor")
    member = (segment == torch.arange(landmarks, device=valid.device)[:, None]) & valid
    return member / member.sum(-1, keepdim=True, dtype=dtype).clamp(min=1)


def pseudo_inverse(A: Tensor, iterations: int = 6, init: Init = "per_matrix") -> Tensor:
    r"""Compute the Moore-Penrose inverse by an iteration of third order, from products alone.

    .. math::
        Z \leftarrow \tfrac14 Z (13 I - AZ (15 I - AZ (7 I - AZ))), \qquad
        Z_0 = A^\top / (\|A\|_1 \|A\|_\infty)

    Each matrix is divided by its own norms, which ensures convergence. `original`, as published,
    divides by the largest column sum of the whole batch: right for softmax maps, whose rows sum to
    1, but then samples depend on each other. Six steps are too few for a nearly singular A.

    Shapes: A (..., m, m) -> (..., m, m).

    Source: https://arxiv.org/abs/2102.03902
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


class Nystromformer(Kernel):
    r"""The softmax map through landmarks, and a convolution of the values; linear in N.

    .. math::
        A v = K_1 K_2^+ (K_3 v) + w * v, \quad K_1 = \sigma(q \tilde k^\top), \quad
        K_2 = \sigma(\tilde q \tilde k^\top), \quad K_3 = \sigma(\tilde q k^\top)

    with sigma a row softmax of logits over sqrt(d), and landmarks that are means of segments. A
    sample of at most `landmarks` valid tokens has the exact softmax map.

    Shapes: those of `Kernel`, x unused. With m landmarks time O(N m d + m^3), memory O(N m).

    Source: https://arxiv.org/abs/2102.03902

    Args:
        landmarks: Number of segments.
        kernel_size: Width of the convolution w; 0 omits it.
        init: Start of the pseudo-inverse (see `pseudo_inverse`).
        iterations: Its number of steps.
        segments: `real` (ours) cuts the valid tokens into nearly equal segments, so that padding
            equals truncation; `published` cuts the padded length and counts padding.

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
        super().__init__(dim, num_heads)
        self.init_args = {"kernel_size": kernel_size}
        check_sizes("Nystromformer", landmarks=landmarks, iterations=iterations)
        check_choices("Nystromformer", init=(init, Init), segments=(segments, Segments))
        self.landmarks, self.init, self.iterations = landmarks, init, iterations
        self.segments = segments
        self.conv = make_depthwise_weight("Nystromformer", num_heads, kernel_size)

    def forward(
        self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None
    ) -> Softmax | LandmarkOperator | PlusConvolution:
        """Compute the map of these tokens."""
        valid, n = key_mask(mask, q, k), q.shape[-2]
        if self.segments == "published" and n % self.landmarks:
            raise ValueError(
                f"{n} tokens are no multiple of {self.landmarks} landmarks, as published "
                "Nystromformer needs; choose segments real"
            )
        A = Softmax(q, k, valid) if n <= self.landmarks else self._approximate_map(q, k, valid)
        return A if self.conv is None else PlusConvolution(A, self.conv, valid)

    def _approximate_map(self, q: Tensor, k: Tensor, valid: Tensor | None) -> LandmarkOperator:
        """Approximate the softmax map of more tokens than landmarks."""
        with autocast_disabled(q):
            q, k = (at_least_float32(t) * t.shape[-1] ** -0.25 for t in (q, k))
            if valid is None:
                ones = q.new_ones(1, 1, 1, q.shape[-2], dtype=torch.bool)
                pool = self._landmark_means(ones, q.dtype)  # (1, 1, m, N)
                mean_q, mean_k = pool @ q, pool @ k
                K1, K2 = ((t @ mean_k.mT).softmax(-1) for t in (q, mean_q))
                K3 = (mean_q @ k.mT).softmax(-1)
            else:
                K1, K2, K3 = self._masked_factors(q, k, valid)
            core = pseudo_inverse(K2, self.iterations, self.init)
            return LandmarkOperator(K1, core, K3.mT, valid)

    def _masked_factors(self, q: Tensor, k: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute K_1, K_2 and K_3 with padding; some samples may have few valid tokens."""
        q, k = zero_padding(q, valid), zero_padding(k, valid)
        least, pool = torch.finfo(q.dtype).min, self._landmark_means(valid, q.dtype)
        mean_q, mean_k = pool @ q, pool @ k
        K1, K2 = q @ mean_k.mT, mean_q @ mean_k.mT
        K3 = (mean_q @ k.mT).masked_fill(~valid, least).softmax(-1)
        if self.segments == "published":
            return K1.softmax(-1), K2.softmax(-1), K3
        filled = (pool.sum(-1) > 0).unsqueeze(-2)  # (B, 1, 1, m)
        K1 = K1.masked_fill(~filled, least).softmax(-1) * valid.mT
        # with one landmark a token K1 is the exact map, so that K2 and K3 only pass values on
        short = valid.sum(-1, keepdim=True) <= self.landmarks  # (B, 1, 1, 1)
        eye = torch.eye(self.landmarks, dtype=q.dtype, device=q.device)
        return K1, torch.where(short, eye, K2.softmax(-1)), torch.where(short, pool, K3)

    def _landmark_means(self, valid: Tensor, dtype: torch.dtype) -> Tensor:
        counted = torch.ones_like(valid) if self.segments == "published" else valid
        return segment_mean_matrix(counted, self.landmarks, dtype) * valid
