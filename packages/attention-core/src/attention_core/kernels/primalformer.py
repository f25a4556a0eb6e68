"""Primalformer (Chen et al. 2023), https://arxiv.org/abs/2305.19798"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_core.checks import check_choices, check_nonnegative, check_sizes, check_tokens
from attention_core.kernels.common import Kernel, at_least_float32, autocast_disabled, key_mask
from attention_core.operators import ValueFreeOutput, masked_mean

Loss = Literal["sample", "batch"]
Trace = Literal["raw", "projected"]
Init = Literal["per_head", "released"]
Padding = Literal["excluded", "published", "zeroed"]


class PrimalScores(ValueFreeOutput):
    r"""The output of Primalformer, and the scores that its penalty needs.

    Shapes: output (B, H, N, d), e and r (B, H, N, s); E and R are the projections of the sampled
    tokens, (B, H, s, d); mask (B, 1, 1, N) is True for the tokens that the penalty counts.
    """

    def __init__(
        self, output: Tensor, e: Tensor, r: Tensor, E: Tensor, R: Tensor, mask: Tensor | None = None
    ) -> None:
        super().__init__(output)
        self.e, self.r, self.E, self.R, self.mask = e, r, E, R, mask


def evenly_spaced_indices(valid: Tensor, points: int) -> Tensor:
    r"""Return the indices of evenly spaced valid tokens, from the first to the last.

    .. math:: i_j = \mathrm{valid}_{\lfloor j (n - 1) / (p - 1) \rfloor}, \quad j = 0, ..., p - 1

    A sample of fewer than p valid tokens repeats some; one without any uses its padding.

    Shapes: valid (B, N) boolean -> (B, p).
    """
    last = (valid.sum(-1, keepdim=True) - 1).clamp(min=0)
    rank = torch.arange(points, device=valid.device) * last // max(points - 1, 1)  # (B, p)
    return valid.to(torch.uint8).argsort(dim=-1, descending=True, stable=True).gather(-1, rank)


class Primalformer(Kernel):
    r"""Attention by the primal of a kernel singular value decomposition: no map, linear in N.

    .. math::
        e = \hat q X'^\top W_e, \quad r = \hat k X'^\top W_r, \quad y = [e, r]\, W_c + b_c, \qquad
        J = \tfrac12 \overline{|\Lambda e|^2} + \tfrac12 \overline{|\Lambda r|^2}
        - \overline{\mathrm{tr}(W_e^\top W_r)}

    with q and k of length 1, X' the p = min(length, rank multiplier) evenly spaced tokens of the
    layer's input, means over tokens and heads, and `penalty` = eta J^2. There are no values: only
    `Plain` can apply it, and the projection of v is not used.

    Shapes: those of `Kernel`, N at most `length`, also below p. Time O(N s d + p s d), memory
    O(N (s + d) + p D).

    Source: https://arxiv.org/abs/2305.19798

    Args:
        length: Tokens of the longest sequence.
        rank: Number s of scores.
        multiplier: Sampled tokens for each score.
        eta: Weight of the penalty.
        loss: J is squared for each sample (released for UEA), or as the batch's mean (for LRA).
        trace: `raw` has W in the trace, `projected` X'^T W (the other choice in LRA's code).
        init: `per_head` makes the columns of each head's W orthonormal; `released` makes only the
            heads orthogonal to each other, since it flattens a head's W to one row.
        padding: `excluded` (ours) uses valid tokens alone, so that padding equals truncation;
            `published` (UEA) ignores the mask; `zeroed` (LRA) only multiplies the output by it.

    >>> primal, q = Primalformer(8, 2, length=7, rank=3, multiplier=2), torch.randn(1, 2, 7, 4)
    >>> primal.W_e.shape, (primal(q, q, torch.randn(1, 7, 8)) @ q).shape
    (torch.Size([2, 6, 3]), torch.Size([1, 2, 7, 4]))
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        length: int = 512,
        rank: int = 20,
        multiplier: int = 10,
        eta: float = 0.05,
        loss: Loss = "sample",
        trace: Trace = "raw",
        init: Init = "per_head",
        padding: Padding = "excluded",
    ) -> None:
        super().__init__(dim, num_heads)
        self.init_args = {"rank": rank, "multiplier": multiplier, "init": init}
        check_choices("Primalformer", loss=(loss, Loss), trace=(trace, Trace))
        check_choices("Primalformer", init=(init, Init), padding=(padding, Padding))
        check_sizes("Primalformer", length=length, rank=rank, multiplier=multiplier)
        check_nonnegative("Primalformer", eta=eta)
        self.dim, self.num_heads, self.length = dim, num_heads, length
        self.points = min(length, rank * multiplier)
        self.eta, self.loss, self.trace, self.padding = eta, loss, trace, padding
        shape = (num_heads, self.points, rank)
        self.W_e, self.W_r = _orthogonal_weights(shape, init), _orthogonal_weights(shape, init)
        self.Lambda = nn.Parameter(torch.rand(num_heads, rank))
        self.combine = nn.Linear(2 * rank, dim // num_heads)

    def forward(self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None) -> PrimalScores:
        """Compute the scores of these tokens, and combine them."""
        check_tokens("Primalformer", x, self.dim)
        if x.shape[1] > self.length:
            raise ValueError(f"Primalformer is made for {self.length} tokens, got {x.shape[1]}")
        given = key_mask(mask, q, k)
        valid = given if self.padding == "excluded" else None
        tokens = x.new_ones(1, x.shape[1], dtype=torch.bool) if valid is None else valid[:, 0, 0]
        index = evenly_spaced_indices(tokens, self.points).unsqueeze(-1)
        X = x.gather(1, index.expand(x.shape[0], -1, self.dim))
        X = X.view(*X.shape[:2], self.num_heads, self.dim // self.num_heads).transpose(1, 2)
        E, R = (W.mT.to(X.dtype) @ X for W in (self.W_e, self.W_r))
        q, k = (F.normalize(at_least_float32(t), dim=-1).to(t.dtype) for t in (q, k))
        e, r = q @ E.mT.to(q.dtype), k @ R.mT.to(k.dtype)
        y = self.combine(torch.cat([e, r], dim=-1)).to(q.dtype)
        y = y if given is None or self.padding == "published" else y * given.mT
        return PrimalScores(y, e, r, E, R, valid)

    def penalty(self, A: PrimalScores) -> Tensor:
        """Return eta times the squared J of an output of this kernel."""
        energies = (self._mean_energy(A.e, A.mask) + self._mean_energy(A.r, A.mask)) / 2
        E, R = (A.E, A.R) if self.trace == "projected" else (self.W_e[None], self.W_r[None])
        traces = (at_least_float32(E) * at_least_float32(R)).sum((-2, -1))  # (B, H) or (1, H)
        J = energies - traces.mean(-1)  # (B,)
        return self.eta * (J.square().mean() if self.loss == "sample" else J.mean().square())

    def _mean_energy(self, scores: Tensor, valid: Tensor | None) -> Tensor:
        """Average |Lambda z|^2 over the tokens and heads of each sample, (B,)."""
        scaled = at_least_float32(scores) * self.Lambda[:, None, :]
        squares = scaled.square().sum(-1, keepdim=True)
        with autocast_disabled(squares):
            return masked_mean(squares, valid).mean((1, 2, 3))


def _orthogonal_weights(shape: tuple[int, int, int], init: Init) -> nn.Parameter:
    W = torch.empty(shape)
    for part in [W] if init == "released" else W:
        nn.init.orthogonal_(part)
    return nn.Parameter(W)
