"""Primalformer (Chen et al. 2023), https://arxiv.org/abs/2305.19798"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_core.kernels.parts import choose, exact, key_mask, wide
from attention_core.operators import Fixed, masked_mean

Loss = Literal["sample", "batch"]
Trace = Literal["raw", "projected"]
Init = Literal["per_head", "released"]
Padding = Literal["excluded", "published"]


class Scores(Fixed):
    r"""What Primalformer puts out, with the scores that it is made of.

    Shapes: output (B, H, N, d), e and r (B, H, N, s); E and R are the projections of the sampled
    tokens, (B, H, s, d); mask (B, 1, 1, N) says which tokens the loss counts.

    Source: https://arxiv.org/abs/2305.19798

    >>> one = torch.ones(1, 1, 3, 2)
    >>> Scores(one, one, one, one, one).average(one).shape
    torch.Size([1, 1, 1, 2])
    """

    def __init__(
        self, output: Tensor, e: Tensor, r: Tensor, E: Tensor, R: Tensor, mask: Tensor | None = None
    ) -> None:
        super().__init__(output)
        self.e, self.r, self.E, self.R, self.mask = e, r, E, R, mask

    def average(self, v: Tensor) -> Tensor:
        """Mean of v over the real tokens."""
        return masked_mean(v, self.mask)


def evenly(keep: Tensor, points: int) -> Tensor:
    r"""Indices of evenly spaced real tokens, from the first to the last.

    .. math:: i_j = \mathrm{real}_{\lfloor j (n - 1) / (p - 1) \rfloor}, \quad j = 0, ..., p - 1

    A sample of fewer than p real tokens repeats some; one of none takes what is there.

    Shapes: keep (B, N) boolean -> (B, p).

    Source: https://arxiv.org/abs/2305.19798

    >>> evenly(torch.tensor([[True, True, True, True, True], [True, False, False, True, False]]), 3)
    tensor([[0, 2, 4],
            [0, 0, 3]])
    """
    last = (keep.sum(-1, keepdim=True) - 1).clamp(min=0)
    rank = torch.arange(points, device=keep.device) * last // max(points - 1, 1)  # (B, p)
    real_first = keep.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
    return real_first.gather(-1, rank)


class Primalformer(nn.Module):
    r"""Attention by the primal of a kernel singular value decomposition: no map, linear in N.

    .. math::
        e = \hat q X'^\top W_e, \quad r = \hat k X'^\top W_r, \quad y = [e, r]\, W_c + b_c, \qquad
        J = \tfrac12 \overline{|\Lambda e|^2} + \tfrac12 \overline{|\Lambda r|^2}
        - \overline{\mathrm{tr}(W_e^\top W_r)}

    with q and k of length 1, X' the p = min(length, rank multiplier) evenly spaced tokens of the
    layer's input, means over tokens and heads, and `penalty` = eta J^2. There are no values: only
    `Plain` can apply it, and the projection of v is not used.

    `loss` squares J for each sample (released for UEA) or its mean over the batch (for LRA).
    `trace` "projected" has X'^T W in place of W (the other choice in LRA's code). `init` makes
    the columns of each head's W orthonormal, or as released only the heads to each other, since
    it flattens a head's W to one row. `padding` "excluded" is ours: real tokens are sampled and
    counted, the other rows are zero, and padding equals truncation; "published" ignores the mask.

    Shapes: q, k (B, H, N, d), x (B, N, D), mask (B, N) or (B, 1, 1, N), True where a token is
    real; N at most `length`, also below p. Time O(N s d + p s d), memory O(N (s + d) + p D).

    Raises ValueError with the two lengths for a longer sequence, for an unknown choice, for a
    size below 1, and for a width that the heads do not divide.

    Source: https://arxiv.org/abs/2305.19798

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
        super().__init__()
        choose("Primalformer's loss", loss, ("sample", "batch"))
        choose("Primalformer's trace", trace, ("raw", "projected"))
        choose("Primalformer's init", init, ("per_head", "released"))
        choose("Primalformer's padding", padding, ("excluded", "published"))
        if min(length, rank, multiplier) < 1:
            raise ValueError(
                f"Primalformer's length, rank and multiplier must be at least 1, "
                f"got {length}, {rank} and {multiplier}"
            )
        if dim % num_heads:
            raise ValueError(f"the width {dim} is not divisible by {num_heads} heads")
        self.num_heads, self.length, self.points = num_heads, length, min(length, rank * multiplier)
        self.eta, self.loss, self.trace, self.padding = eta, loss, trace, padding
        shape = (num_heads, self.points, rank)
        self.W_e, self.W_r = _orthogonal(shape, init), _orthogonal(shape, init)
        self.Lambda = nn.Parameter(torch.rand(num_heads, rank))
        self.combine = nn.Linear(2 * rank, dim // num_heads)

    def forward(self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None) -> Scores:
        """Put out the scores of these tokens, combined."""
        if x.shape[1] > self.length:
            raise ValueError(f"Primalformer is made for {self.length} tokens, got {x.shape[1]}")
        keep = key_mask(mask) if self.padding == "excluded" else None
        X = self.sample(x, keep)  # (B, H, p, d)
        E, R = self.W_e.mT @ X, self.W_r.mT @ X
        q, k = (F.normalize(wide(t), dim=-1).to(t.dtype) for t in (q, k))
        e, r = q @ E.mT.to(q.dtype), k @ R.mT.to(k.dtype)
        y = self.combine(torch.cat([e, r], dim=-1)).to(q.dtype)
        return Scores(y if keep is None else y * keep.mT, e, r, E, R, keep)

    def sample(self, x: Tensor, keep: Tensor | None) -> Tensor:
        """X', the sampled tokens by heads, (B, H, p, d)."""
        if keep is None:
            real = torch.ones(1, x.shape[1], dtype=torch.bool, device=x.device)
        else:
            real = keep[:, 0, 0]
        index = evenly(real, self.points).expand(len(x), -1).unsqueeze(-1)
        X = x.gather(1, index.expand(-1, -1, x.shape[-1]))
        return X.view(len(x), self.points, self.num_heads, -1).transpose(1, 2)

    def penalty(self, A: Scores) -> Tensor:
        """Eta times the squared J of what this kernel put out."""
        energies = (self._energy(A.e, A.mask) + self._energy(A.r, A.mask)) / 2
        J = energies - self._agreement(A)  # (B,)
        return self.eta * (J.square().mean() if self.loss == "sample" else J.mean().square())

    def _energy(self, scores: Tensor, keep: Tensor | None) -> Tensor:
        """The mean of |Lambda z|^2 over the tokens and heads of each sample, (B,)."""
        squares = (wide(scores) * self.Lambda[:, None, :]).square().sum(-1, keepdim=True)
        with exact(squares):
            return masked_mean(squares, keep).mean((1, 2, 3))

    def _agreement(self, A: Scores) -> Tensor:
        """The trace, averaged over the heads, (B,) or (1,)."""
        E, R = (A.E, A.R) if self.trace == "projected" else (self.W_e[None], self.W_r[None])
        return (wide(E) * wide(R)).sum((-2, -1)).mean(-1)


def _orthogonal(shape: tuple[int, int, int], init: Init) -> nn.Parameter:
    W = torch.empty(shape)
    for part in [W] if init == "released" else W:
        nn.init.orthogonal_(part)
    return nn.Parameter(W)
