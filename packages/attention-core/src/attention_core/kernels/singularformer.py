"""Singularformer (Wu et al. 2023), https://www.ijcai.org/proceedings/2023/493"""

import threading
from typing import Literal

import torch
from torch import Tensor, nn

from attention_core.checks import check_choices, check_nonnegative, check_sizes, check_tokens
from attention_core.kernels.common import Kernel, at_least_float32, autocast_disabled, key_mask
from attention_core.kernels.landmark import LandmarkOperator

Padding = Literal["excluded", "published"]
_CALL = threading.local()  # scores by the id of their layer: threads may share a model


def off_diagonal(M: Tensor) -> Tensor:
    """Set the diagonals of matrices (..., r, r) to zero."""
    return M - torch.diag_embed(M.diagonal(dim1=-2, dim2=-1))


class Singularformer(Kernel):
    r"""Softmax attention among r learned summaries of the sequence, and back; linear in N.

    .. math::
        A = a' S a^\top, \quad a = \sigma_{tokens}(P), \quad a' = \sigma_{rank}(P), \quad
        S = \sigma\!\left(\frac{(a^\top q)(a^\top k)^\top}{\sqrt{d}}\right), \quad P = x W_p + b_p

    a, a' and S play the roles of singular vectors and values, so that `penalty` is gamma times

    .. math::
        \overline{\mathrm{off}(a^\top a)^2} + \overline{\mathrm{off}(S)} +
        \overline{\mathrm{off}(a'^\top a')^2}

    with means over all entries, including the zeros on the diagonals. The released code
    doubles the sum at each layer, S_l = 2 (S_{l-1} + p_l); here each layer counts once. It pools
    before it projects, which is the same, as the columns of a sum to 1. P is shared by the heads.
    Padding does not affect valid tokens. No recipe for LRA or UEA is public.

    Shapes: those of `Kernel`. Time O(N r (D + H d)), memory O(N r), in float32 at least.

    Source: https://www.ijcai.org/proceedings/2023/493

    Args:
        rank: Number r of summaries.
        gamma: Weight of the penalty.
        padding: `excluded` (ours) has zero rows at padding, and padding equals truncation, also in
            the penalty; `published` gives padding uniform rows of a', which the penalty counts.
        add_scores: Add the scores of the layer before to those of S, as released; null is false.

    >>> A = Singularformer(8, 2, rank=3)(*torch.randn(2, 1, 2, 7, 4), torch.randn(1, 7, 8))
    >>> rows = A @ torch.ones(1, 2, 7, 1)
    >>> torch.allclose(rows, torch.ones(()))
    True
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        rank: int = 64,
        gamma: float = 1.0,
        padding: Padding = "excluded",
        add_scores: bool | None = None,
    ) -> None:
        super().__init__(dim, num_heads)
        self.init_args = {"rank": rank}
        check_sizes("Singularformer", rank=rank)
        check_nonnegative("Singularformer", gamma=gamma)
        check_choices("Singularformer", padding=(padding, Padding))
        self.add_scores = add_scores
        # no submodule: its weights are those of another layer
        self.before: tuple[Singularformer, ...] = ()
        self.is_followed = False
        self.dim, self.num_heads, self.gamma, self.padding = dim, num_heads, gamma, padding
        self.project = nn.Linear(dim, rank)

    def follow_layer(self, before: nn.Module) -> None:
        """Add the scores of the layer before in each pass, if `add_scores` says so."""
        if self.add_scores and isinstance(before, Singularformer):
            self.before, before.is_followed = (before,), True

    def forward(
        self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None
    ) -> LandmarkOperator:
        """Compute the map of these tokens."""
        check_tokens("Singularformer", x, self.dim)
        valid = key_mask(mask, q, k)
        P = at_least_float32(self.project(x)).unsqueeze(1)  # (B, 1, N, r)
        if valid is not None:
            P = P.masked_fill(~valid.mT, torch.finfo(P.dtype).min)
        tokens, ranks = P.softmax(-2), P.softmax(-1)
        if valid is not None:
            tokens = tokens * valid.mT  # exact zeros, also for a sample of padding alone
            ranks = ranks * valid.mT if self.padding == "excluded" else ranks
        with autocast_disabled(q):
            pooled_q, pooled_k = tokens.mT @ at_least_float32(q), tokens.mT @ at_least_float32(k)
            scores = pooled_q @ pooled_k.mT * q.shape[-1] ** -0.5  # (B, H, r, r)
            for before in self.before:
                if (added := getattr(_CALL, f"{id(before)}", None)) is None:
                    raise ValueError("add_scores does not work with activation checkpointing")
                scores = scores + added
                setattr(_CALL, f"{id(before)}", None)  # a graph that stays is not freed
            if self.is_followed:
                setattr(_CALL, f"{id(self)}", scores)
            S = scores.softmax(-1)
        left, right = (t.expand(-1, self.num_heads, -1, -1) for t in (ranks, tokens))
        return LandmarkOperator(left, S, right, valid)

    def penalty(self, A: LandmarkOperator) -> Tensor:
        """Return gamma times the deviation of the factors from singular vectors and values."""
        with autocast_disabled(A.left):
            ranks, tokens = A.left[:, 0], A.right[:, 0]  # the heads share them
            orthogonal = (off_diagonal(t.mT @ t).square().mean() for t in (ranks, tokens))
            return self.gamma * (sum(orthogonal, off_diagonal(A.core).mean()))
