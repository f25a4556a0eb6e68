"""Longformer (Beltagy, Peters, Cohan 2020), https://arxiv.org/abs/2004.05150"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_core.kernels.parts import key_mask, wide
from attention_core.operators import identity, masked_mean


class Banded:
    r"""A map of a band about the diagonal, and of g rows and columns that are full.

    .. math:: (A v)_i = \sum_{|i - j| \le h,\, j \ge g} A_{ij} v_j + \sum_{j < g} A_{ij} v_j

    Rows are taken in blocks of h, whose keys are 3 h tokens: no N x N tensor is made.

    Shapes: band (B, H, C, h, 3h) for C = ceil(N / h), columns (B, H, N, g), rows (B, H, g, N),
    mask (B, 1, 1, N) boolean or None. Time O(N h D) for an application.

    Source: sec. 3.1 of https://arxiv.org/abs/2004.05150

    >>> band = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])[None, None, :, None]
    >>> A = Banded(band, torch.zeros(1, 1, 2, 0), torch.zeros(1, 1, 0, 2))
    >>> A @ torch.tensor([[[[1.0], [3.0]]]])
    tensor([[[[0.5000],
              [1.5000]]]])
    """

    def __init__(
        self, band: Tensor, columns: Tensor, rows: Tensor, mask: Tensor | None = None
    ) -> None:
        self.band, self.columns, self.rows, self.mask = band, columns, rows, mask

    def __matmul__(self, v: Tensor) -> Tensor:
        """Apply the band block by block, then what is full."""
        n, full = self.columns.shape[-2:]
        near = self.band.to(v.dtype) @ windows(v, self.band.shape[-2])
        y = near.flatten(2, 3)[:, :, :n]
        if full == 0:
            return y
        y = y + self.columns.to(v.dtype) @ v[:, :, :full]
        return torch.cat([self.rows.to(v.dtype) @ v, y[:, :, full:]], dim=2)

    def average(self, v: Tensor) -> Tensor:
        """Mean of v over the real keys."""
        return masked_mean(v, self.mask)

    def dense(self) -> Tensor:
        """The map itself, (B, H, N, N), for looking at it."""
        return self @ self.eye()

    def eye(self) -> Tensor:
        """The identity as values, (B, H, N, N)."""
        return identity(self.columns, self.columns.shape[-2])


def windows(t: Tensor, half: int) -> Tensor:
    """Overlapping stretches of tokens: each block of `half`, with as many on either side.

    Shapes: t (B, H, N, D) -> (B, H, ceil(N / half), 3 half, D), zero beyond the ends.

    Source: appendix A of https://arxiv.org/abs/2004.05150 (chunks that overlap)

    >>> windows(torch.tensor([1, 2, 3]).view(1, 1, 3, 1), 2)[0, 0, :, :, 0]
    tensor([[0, 0, 1, 2, 3, 0],
            [1, 2, 3, 0, 0, 0]])
    """
    ends = (0, 0, half, half + -t.shape[2] % half)
    return F.pad(t, ends).unfold(2, 3 * half, half).mT


class Longformer(nn.Module):
    r"""Attention inside a sliding window, and to and from the first tokens; linear in N.

    .. math::
        A_{ij} \propto \exp(q_i \cdot k_j / \sqrt{d}), \qquad
        |i - j| \le w/2 \;\text{or}\; i < g \;\text{or}\; j < g

    The first g = `global_tokens` tokens attend to all and all attend to them. Their rows use the
    same projections as the others: so did the runs on LRA, which tie what the paper keeps apart.
    A window beyond the sequence is full attention. Rows of padding are zero, as published.

    Shapes: q, k (B, H, N, d), x (B, N, D) unused, mask (B, N) or (B, 1, 1, N), True where a token
    is real. Time O(N (w + g) D), memory O(N (w + g)) a head, by blocks of w/2; never causal.

    Raises ValueError for a window that is not even and at least 2, for fewer than no global
    tokens, and for a mask that depends on the query.

    Source: sec. 3.1 of https://arxiv.org/abs/2004.05150

    >>> q = k = torch.zeros(1, 1, 4, 2)
    >>> Longformer(2, 1, window=2)(q, k, torch.zeros(1, 4, 2)).dense()[0, 0]
    tensor([[0.5000, 0.5000, 0.0000, 0.0000],
            [0.3333, 0.3333, 0.3333, 0.0000],
            [0.0000, 0.3333, 0.3333, 0.3333],
            [0.0000, 0.0000, 0.5000, 0.5000]])
    """

    def __init__(self, dim: int, num_heads: int, window: int = 128, global_tokens: int = 0) -> None:
        super().__init__()
        if window < 2 or window % 2:
            raise ValueError(
                f"Longformer's window must be even and at least 2, half on each side: got {window}"
            )
        if global_tokens < 0:
            raise ValueError(f"Longformer's global_tokens must be 0 or more, got {global_tokens}")
        self.window, self.global_tokens = window, global_tokens

    def forward(self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None) -> Banded:
        """Weigh the keys of each window; scores are normalised in float32 or wider."""
        keep, n = key_mask(mask), q.shape[-2]
        half, full = max(1, min(self.window // 2, n - 1)), min(self.global_tokens, n)
        real = q.new_ones(1, 1, 1, n, dtype=torch.bool) if keep is None else keep
        q = q * q.shape[-1] ** -0.5
        to_global = _scores(q, k[:, :, :full], real[..., :full])  # (B, H, N, g)
        weights = torch.cat([_near(q, k, real, half, full), _blocks(to_global, half)], dim=-1)
        weights = (weights.softmax(-1) * _blocks(real.mT, half)).to(k.dtype)
        band, columns = weights[..., : 3 * half], weights[..., 3 * half :]
        rows = _scores(q[:, :, :full], k, real).softmax(-1) * real[..., :full].mT
        return Banded(band, columns.flatten(2, 3)[:, :, :n], rows.to(k.dtype), keep)


def _near(q: Tensor, k: Tensor, real: Tensor, half: int, full: int) -> Tensor:
    """Scores in the band, (B, H, C, h, 3h); global tokens have their own column and stay out."""
    offset = torch.arange(3 * half, device=q.device) - torch.arange(half, device=q.device)[:, None]
    local = real & (torch.arange(real.shape[-1], device=q.device) >= full)
    inside = windows(local.mT, half).mT & (offset >= 0) & (offset <= 2 * half)
    return _scores(_blocks(q, half), windows(k, half), inside)


def _scores(q: Tensor, k: Tensor, allowed: Tensor) -> Tensor:
    """Forbidden by a finite number, so that a row without keys is finite, and is then zeroed."""
    scores = wide(q @ k.mT)
    return scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)


def _blocks(t: Tensor, half: int) -> Tensor:
    t = F.pad(t, (0, 0, 0, -t.shape[2] % half))
    return t.reshape(*t.shape[:2], t.shape[2] // half, half, t.shape[-1])
