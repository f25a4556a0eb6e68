"""Longformer (Beltagy, Peters, Cohan 2020), https://arxiv.org/abs/2004.05150"""

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_core.checks import check_even, check_ints
from attention_core.kernels.common import Kernel, at_least_float32, key_mask
from attention_core.operators import LinearMap


class Banded(LinearMap):
    r"""A map of a band around the diagonal and g full rows and columns.

    .. math:: (A v)_i = \sum_{|i - j| \le h,\, j \ge g} A_{ij} v_j + \sum_{j < g} A_{ij} v_j

    Rows are processed in blocks of h, whose keys are 3 h tokens: no N x N tensor is formed.

    Shapes: band (B, H, C, h, 3h) for C = ceil(N / h), columns (B, H, N, g), rows (B, H, g, N),
    mask (B, 1, 1, N) boolean or None. Time O(N h D) for an application.

    Source: sec. 3.1 of https://arxiv.org/abs/2004.05150
    """

    def __init__(self, band: Tensor, columns: Tensor, rows: Tensor, mask: Tensor | None) -> None:
        self.band, self.columns, self.rows, self.mask = band, columns, rows, mask
        self.like = columns

    def __matmul__(self, v: Tensor) -> Tensor:
        """Apply the band block by block, then the full columns and rows."""
        n, full = self.columns.shape[-2:]
        near = self.band.to(v.dtype) @ sliding_windows(v, self.band.shape[-2])
        y = near.flatten(2, 3)[:, :, :n]
        if full == 0:
            return y
        y = y + self.columns.to(v.dtype) @ v[:, :, :full]
        return torch.cat([self.rows.to(v.dtype) @ v, y[:, :, full:]], dim=2)


def sliding_windows(t: Tensor, half: int) -> Tensor:
    """Cut tokens into overlapping windows: each block of `half`, with as many on either side.

    Shapes: t (B, H, N, D) -> (B, H, ceil(N / half), 3 half, D), zero beyond the ends.

    Source: appendix A of https://arxiv.org/abs/2004.05150 (chunks that overlap)

    >>> sliding_windows(torch.tensor([1, 2, 3]).view(1, 1, 3, 1), 2)[0, 0, :, :, 0]
    tensor([[0, 0, 1, 2, 3, 0],
            [1, 2, 3, 0, 0, 0]])
    """
    return F.pad(t, (0, 0, half, half + -t.shape[2] % half)).unfold(2, 3 * half, half).mT


class Longformer(Kernel):
    r"""Attention inside a sliding window, plus attention to and from the first tokens; linear in N.

    .. math::
        A_{ij} \propto \exp(q_i \cdot k_j / \sqrt{d}), \qquad
        |i - j| \le w/2 \;\text{or}\; i < g \;\text{or}\; j < g

    The first g tokens use the same projections as the others, as in the runs on LRA; the paper has
    separate ones. A window longer than the sequence is full attention. Rows of padding are zero.

    Shapes: those of `Kernel`, x unused. Time O(N (w + g) D), memory O(N (w + g)) a head.

    Source: sec. 3.1 of https://arxiv.org/abs/2004.05150

    Args:
        window: Width w of the band, even.
        global_tokens: Number g of first tokens that attend to all, and to which all attend.

    >>> q = k = torch.zeros(1, 1, 4, 2)
    >>> Longformer(2, 1, window=2)(q, k, torch.zeros(1, 4, 2)).dense()[0, 0]
    tensor([[0.5000, 0.5000, 0.0000, 0.0000],
            [0.3333, 0.3333, 0.3333, 0.0000],
            [0.0000, 0.3333, 0.3333, 0.3333],
            [0.0000, 0.0000, 0.5000, 0.5000]])
    """

    def __init__(self, dim: int, num_heads: int, window: int = 128, global_tokens: int = 0) -> None:
        super().__init__(dim, num_heads)
        check_even("Longformer", window=window)  # half on each side
        check_ints("Longformer", 0, global_tokens=global_tokens)
        self.window, self.global_tokens = window, global_tokens

    def forward(self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None) -> Banded:
        """Compute the weights of each window, normalized in float32 or float64."""
        mask, n = key_mask(mask, q, k), q.shape[-2]
        half, full = max(1, min(self.window // 2, n - 1)), min(self.global_tokens, n)
        valid = q.new_ones(1, 1, 1, n, dtype=torch.bool) if mask is None else mask
        q = q * q.shape[-1] ** -0.5
        to_global = _masked_scores(q, k[:, :, :full], valid[..., :full])  # (B, H, N, g)
        tokens = torch.arange(max(n, 3 * half), device=q.device)
        offset = tokens[: 3 * half] - tokens[:half, None]
        inside = sliding_windows((valid & (tokens[:n] >= full)).mT, half).mT
        inside = inside & (offset >= 0) & (offset <= 2 * half)
        near = _masked_scores(_split_blocks(q, half), sliding_windows(k, half), inside)
        weights = torch.cat([near, _split_blocks(to_global, half)], dim=-1)
        weights = (weights.softmax(-1) * _split_blocks(valid.mT, half)).to(k.dtype)
        band, columns = weights[..., : 3 * half], weights[..., 3 * half :]
        rows = _masked_scores(q[:, :, :full], k, valid).softmax(-1) * valid[..., :full].mT
        return Banded(band, columns.flatten(2, 3)[:, :, :n], rows.to(k.dtype), mask)


def _masked_scores(q: Tensor, k: Tensor, allowed: Tensor) -> Tensor:
    """Mask scores by a finite number: a row without keys stays finite, and is set to zero later."""
    scores = at_least_float32(q @ k.mT)
    return scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)


def _split_blocks(t: Tensor, half: int) -> Tensor:
    # F.pad of older versions of torch takes no tensor without entries
    t = torch.cat([t, t.new_zeros(*t.shape[:2], -t.shape[2] % half, t.shape[-1])], 2)
    return t.reshape(*t.shape[:2], t.shape[2] // half, half, t.shape[-1])
