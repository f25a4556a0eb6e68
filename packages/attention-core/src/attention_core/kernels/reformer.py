"""Reformer (Kitaev, Kaiser, Levskaya 2020), https://arxiv.org/abs/2001.04451"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_core.kernels.hashed import Chunks, Hashed
from attention_core.kernels.parts import choose, exact, key_mask, wide

Redraw = Literal["training", "always", "never"]
Ring = Literal["sample", "joined"]

ITSELF = -1e5  # the score of a token with itself: it counts where there is no other key
COLUMNS = 32  # of a rotation at a time: N tokens times N / 64 columns would be quadratic memory


class Reformer(nn.Module):
    r"""Attention among tokens that hash alike; queries are keys.

    .. math::
        A = \sum_r \mathrm{softmax}_r(\ell_r) \, \mathrm{softmax}_{j \in \mathcal{P}_r(i)}
        (q_i \cdot k_j), \qquad k_j = q_j / \lVert q_j \rVert, \quad
        \mathrm{bucket}_r(i) = \arg\max [q_i R_r, -q_i R_r]

    Each of `hashes` rounds sorts the tokens by bucket; P_r(i) is the chunk of i and the one
    before it, circular, and l_r the log of the sum that normalises it. A token scores -1e5 with
    itself. The projection of the keys is unused, as published. The scores have no 1/sqrt(d), as
    in the runs on LRA; `scale_logits` puts it back, as other releases do.

    `redraw` says when the rotations R_r are drawn for each operator: in `training` (ours, so that
    evaluation is reproducible), `always` (published) or `never`; else the module's own are used.
    `buckets` is 2^floor(log2(2 N / chunk)) where None, at most `max_buckets`, for which there are
    own rotations. `ring` says what closes the circle: `sample` (ours) closes each round at the
    last real token and counts N without padding, so that padding equals truncation; `joined`
    (published) makes all rounds one ring, whose first chunk sees the last of another round, and
    counts padding.

    Shapes: q (B, H, N, d), k, x unused, mask (B, N) or (B, 1, 1, N), True where a token is real;
    any N. Memory O(R N (chunk + d)); time O(R N d (chunk + buckets)), so hashing is quadratic
    until max_buckets is reached, with a constant of 1 / chunk; never causal.

    Raises ValueError for fewer than one hash or slot of a chunk, for buckets that are not even
    and at least 2, for an unknown choice, and for a mask that depends on the query.

    Source: sec. 2 of https://arxiv.org/abs/2001.04451

    >>> reformer, q = Reformer(8, 2, chunk=4).eval(), torch.randn(1, 2, 11, 4)
    >>> A = reformer(q, q, torch.randn(1, 11, 8))
    >>> torch.allclose(A @ torch.ones(1, 2, 11, 1), torch.ones(()))
    True
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        hashes: int = 2,
        chunk: int = 64,
        buckets: int | None = None,
        max_buckets: int = 256,
        scale_logits: bool = False,
        redraw: Redraw = "training",
        ring: Ring = "sample",
    ) -> None:
        super().__init__()
        _check(hashes, chunk, buckets, max_buckets)
        choose("Reformer's redraw", redraw, get_args(Redraw))
        choose("Reformer's ring", ring, get_args(Ring))
        self.hashes, self.chunk = hashes, chunk
        self.buckets, self.max_buckets = buckets, max_buckets
        self.scale_logits, self.redraw, self.ring = scale_logits, redraw, ring
        columns = (buckets or max_buckets) // 2
        self.rotations: Tensor  # saved, so that a checkpoint hashes as it did
        self.register_buffer("rotations", torch.randn(num_heads, hashes, columns, dim // num_heads))

    def forward(self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None) -> Hashed:
        """Hash, sort, and weigh the keys of each chunk; scores are normalised in float32."""
        keep, n = key_mask(mask), q.shape[-2]
        chunks = self._sort(q, keep)
        norm = torch.rsqrt(wide(q).square().mean(-1, keepdim=True) + 1e-6) * q.shape[-1] ** -0.5
        keys = chunks.paired(chunks.gather((wide(q) * norm).to(q.dtype)))
        queries = chunks.gather(q * q.shape[-1] ** -0.5 if self.scale_logits else q)
        itself = chunks.order.unsqueeze(-1) == chunks.paired(chunks.order).unsqueeze(-2)
        scores = wide(queries @ keys.mT).masked_fill(itself, ITSELF)
        scores = scores.masked_fill(~chunks.allowed(), torch.finfo(scores.dtype).min)
        share = chunks.softmax_of_rounds(scores.logsumexp(-1, keepdim=True))
        if keep is not None:
            share = share * chunks.gather(keep.mT.expand_as(q[..., :1]).to(share.dtype))
        return Hashed(chunks, (scores.softmax(-1) * share).to(q.dtype), n, keep)

    def _sort(self, q: Tensor, keep: Tensor | None) -> Chunks:
        batch, _, n, _ = q.shape
        real = torch.full((batch,), n, device=q.device)
        counted = real if keep is None else keep.sum(-1).flatten().expand(batch)
        bucket = self._hash(q, counted if self.ring == "sample" else real)
        if keep is not None:
            bucket = bucket.masked_fill(~keep, self.rotations.shape[2] * 2)
        bucket = F.pad(bucket, (0, -n % self.chunk), value=self.rotations.shape[2] * 2)
        order = bucket.argsort(dim=-1, stable=True)
        order = order.view(*order.shape[:-1], -1, self.chunk)
        last = (counted.clamp(min=1) - 1) // self.chunk if self.ring == "sample" else None
        return Chunks.of(order, counted, last)

    @torch.no_grad()
    def _hash(self, q: Tensor, n: Tensor) -> Tensor:
        """The bucket of each token, (B, H, R, N): -q R follows q R, a few columns at a time."""
        columns = self._columns(q.shape[-2])
        rotations = self.rotations[:, :, :columns]
        if self.redraw == "always" or (self.redraw == "training" and self.training):
            rotations = torch.randn_like(rotations)
        powers = self.chunk * 2 ** torch.arange(2, 2 + columns.bit_length(), device=q.device)
        own = 2 ** (2 * n[:, None] >= powers).sum(-1)  # half the buckets of each sample
        best = wide(q).new_full((*q.shape[:2], self.hashes, q.shape[2]), -torch.inf)
        bucket = torch.zeros_like(best, dtype=torch.long)
        for start in range(0, columns, COLUMNS):
            with exact(q):
                turned = wide(q).unsqueeze(2) @ wide(rotations[:, :, start : start + COLUMNS].mT)
            column = start + torch.arange(turned.shape[-1], device=q.device)
            beyond = column >= (columns if self.buckets else own.view(-1, 1, 1, 1, 1))
            for sign in (1, -1):
                high, at = (sign * turned).masked_fill(beyond, -torch.inf).max(-1)
                at = at + start + (columns if sign < 0 else 0)
                best, bucket = torch.maximum(best, high), torch.where(high > best, at, bucket)
        return bucket

    def _columns(self, n: int) -> int:
        """Half the buckets of n tokens."""
        chosen = self.buckets or 2 ** (2 * n // self.chunk).bit_length() // 2
        return max(1, min(chosen // 2, self.rotations.shape[2]))


def _check(hashes: int, chunk: int, buckets: int | None, max_buckets: int) -> None:
    for name, value in (("hashes", hashes), ("chunk", chunk)):
        if value < 1:
            raise ValueError(f"Reformer's {name} must be at least 1, got {value}")
    for name, even in (("buckets", buckets), ("max_buckets", max_buckets)):
        if even is not None and (even < 2 or even % 2):
            raise ValueError(f"Reformer's {name} must be even and at least 2, got {even}")
