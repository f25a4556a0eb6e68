"""Reformer (Kitaev, Kaiser, Levskaya 2020), https://arxiv.org/abs/2001.04451"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_core.checks import check_choices, check_even, check_sizes
from attention_core.kernels.common import Kernel, at_least_float32, autocast_disabled, key_mask
from attention_core.kernels.lsh import LSHChunks, LSHOperator
from attention_core.operators import is_traced

Redraw = Literal["training", "always", "never"]
Ring = Literal["sample", "joined"]

SELF_ATTENTION_LOGIT = -1e5  # a token attends to itself only where there is no other key
ROTATION_CHUNK = 32  # columns of a rotation at a time: all of them would need O(N^2) memory


class _Softmax(torch.autograd.Function):
    """The softmax of rows, and the logarithm of their normalizers, by one backward pass."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> tuple[Tensor, Tensor]:
        P = scores.softmax(-1)
        ctx.save_for_backward(P)
        return P, scores.amax(-1, keepdim=True) - P.amax(-1, keepdim=True).log()

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_total: Tensor) -> Tensor:
        (P,) = ctx.saved_tensors
        gP = g * P
        return torch.addcmul(gP, P, g_total - gP.sum(-1, keepdim=True))


class Reformer(Kernel):
    r"""Attention among tokens in the same hash bucket; queries are keys.

    .. math::
        A = \sum_r \mathrm{softmax}_r(\ell_r) \, \mathrm{softmax}_{j \in \mathcal{P}_r(i)}
        (q_i \cdot k_j), \qquad k_j = q_j / \lVert q_j \rVert, \quad
        \mathrm{bucket}_r(i) = \arg\max [q_i R_r, -q_i R_r]

    Each round sorts the tokens by bucket. P_r(i) is the chunk of i and the chunk
    before it, circularly; l_r is the logarithm of the normalizer of its softmax. The score of a
    token with itself is -1e5. The projection of the keys is unused, as published.

    Shapes: those of `Kernel`, k, x unused; any N. Memory O(R N (chunk + d)); time
    O(R N d (chunk + buckets)), so hashing is quadratic until max_buckets is reached.

    Source: sec. 2 of https://arxiv.org/abs/2001.04451

    Args:
        hashes: Number of rounds R.
        chunk: Tokens of a chunk.
        buckets: Number of buckets, even; null is 2^floor(log2(2 N / chunk)).
        max_buckets: Most buckets by that rule, for which the module has rotations.
        scale_logits: Divide scores by sqrt(d), which the runs on LRA do not.
        redraw: When an operator draws new rotations R_r: in `training` (ours: evaluation is
            reproducible), `always` (published) or `never`.
        ring: `sample` (ours) closes each round at the last valid token, so that padding equals
            truncation; `joined` (published) makes all rounds one ring, and counts padding in N.

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
        super().__init__(dim, num_heads)
        check_sizes("Reformer", hashes=hashes, chunk=chunk)
        check_even("Reformer", max_buckets=max_buckets)
        if buckets is not None:
            check_even("Reformer", buckets=buckets)
        check_choices("Reformer", redraw=(redraw, Redraw), ring=(ring, Ring))
        self.hashes, self.chunk = hashes, chunk
        self.buckets, self.max_buckets = buckets, max_buckets
        self.scale_logits, self.redraw, self.ring = scale_logits, redraw, ring
        columns = (buckets or max_buckets) // 2
        self.rotations: Tensor  # saved, so that a checkpoint hashes as it did
        self.register_buffer("rotations", torch.randn(num_heads, hashes, columns, dim // num_heads))

    def forward(self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None) -> LSHOperator:
        """Hash, sort, and compute the weights of each chunk, normalized in float32 or float64."""
        valid, n = key_mask(mask, q, q), q.shape[-2]
        chunks = self._sort_by_bucket(q, valid)
        queries, width = chunks.gather_tokens(q), q.shape[-1]
        length = at_least_float32(queries).square().mean(-1, keepdim=True) + 1e-6
        keys = chunks.pair_chunks((queries * (length * width).rsqrt()).to(q.dtype))
        if self.scale_logits:
            queries = queries * width**-0.5
        itself = chunks.order.unsqueeze(-1) == chunks.pair_chunks(chunks.order).unsqueeze(-2)
        # in place: a product does not read its result backward
        scores = at_least_float32(queries @ keys.mT).masked_fill_(itself, SELF_ATTENTION_LOGIT)
        if valid is not None or n % self.chunk or n <= self.chunk:
            scores.masked_fill_(~chunks.allowed_keys(), torch.finfo(scores.dtype).min)
        if is_traced():
            weights, total = scores.softmax(-1), scores.logsumexp(-1, keepdim=True)
        else:
            weights, total = _Softmax.apply(scores)  # type: ignore[no-untyped-call]
        share = chunks.softmax_over_rounds(total)
        if valid is not None:
            share = share * chunks.gather_tokens(valid.mT.expand_as(q[..., :1]).to(share.dtype))
        return LSHOperator(chunks, weights, share, q, valid)

    def _sort_by_bucket(self, q: Tensor, valid: Tensor | None) -> LSHChunks:
        batch, _, n, _ = q.shape
        length = torch.full((batch,), n, device=q.device)
        counted = length if valid is None else valid.sum(-1).flatten().expand(batch)
        bucket = self._hash_tokens(q, counted if self.ring == "sample" else length)
        if valid is not None:
            bucket = bucket.masked_fill(~valid, self.rotations.shape[2] * 2)
        bucket = F.pad(bucket, (0, -n % self.chunk), value=self.rotations.shape[2] * 2)
        order = bucket.argsort(dim=-1, stable=True)
        order = order.view(*order.shape[:-1], bucket.shape[-1] // self.chunk, self.chunk)
        last = (counted.clamp(min=1) - 1) // self.chunk if self.ring == "sample" else None
        return LSHChunks.from_order(order, counted, last)

    @torch.no_grad()
    def _hash_tokens(self, q: Tensor, n: Tensor) -> Tensor:
        """Find the bucket of each token, (B, H, R, N), a few columns of [q R, -q R] at a time."""
        buckets = self.buckets or 2 ** (2 * q.shape[-2] // self.chunk).bit_length() // 2
        columns = max(1, min(buckets // 2, self.rotations.shape[2]))
        rotations = self.rotations[:, :, :columns]
        if self.redraw == "always" or (self.redraw == "training" and self.training):
            rotations = torch.randn_like(rotations)
        powers = self.chunk * 2 ** torch.arange(2, 2 + columns.bit_length(), device=q.device)
        own = 2 ** (2 * n[:, None] >= powers).sum(-1)  # half the buckets of each sample
        best = at_least_float32(q).new_full((*q.shape[:2], self.hashes, q.shape[2]), -torch.inf)
        bucket = torch.zeros_like(best, dtype=torch.long)
        for start in range(0, columns, ROTATION_CHUNK):
            with autocast_disabled(q):
                u = at_least_float32(q).unsqueeze(2)
                turned = u @ rotations[:, :, start : start + ROTATION_CHUNK].mT.to(u.dtype)
            column = start + torch.arange(turned.shape[-1], device=q.device)
            beyond = column >= (columns if self.buckets else own.view(-1, 1, 1, 1, 1))
            for sign in (1, -1):
                high, at = (sign * turned).masked_fill(beyond, -torch.inf).max(-1)
                at = at + start + (columns if sign < 0 else 0)
                best, bucket = torch.maximum(best, high), torch.where(high > best, at, bucket)
        return bucket
