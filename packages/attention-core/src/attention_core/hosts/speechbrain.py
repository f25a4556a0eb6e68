"""Adapters for speechbrain, https://github.com/speechbrain/speechbrain

Those of its encoders' self-attention; decoders stay plain, as published. Each drops entries of the
map that it applies, as speechbrain does; the released GFSA code drops entries of H, which would
have to be formed for it. At a dropout of 0 both are the same.

A streaming encoder sees a window of frames, and A^2 is then taken inside of it.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from speechbrain.nnet.attention import MultiheadAttention, RelPosMHAXL
from torch import Tensor, nn

from attention_core import spectral
from attention_core.adapters import Filtered
from attention_core.operators import Host, Softmax, support
from attention_core.tokens import LayerScale


class FilteredMultiheadAttention(Filtered, MultiheadAttention):
    r"""speechbrain's regularMHA with a filter, by fused calls in O(N) memory.

    .. math:: y = H(A) v \, W_O, \qquad A = \mathrm{softmax}(q k^\top / \sqrt{d} + \mathrm{mask})

    With Plain it is its host but for rounding, as the host forms the map. Maps are formed where
    `return_attn_weights` is True, the mean of H over heads; encoders of speechbrain, which name
    no choice, get None for them, as they do from its RoPEMHA.

    Shapes: query (B, N, E), which key and value are too -> (B, N, E) and maps (B, N, N); masks are
    True where a frame is ignored: key_padding_mask (B, N), attn_mask (N, N) or (B heads, N, N),
    boolean or, as are pos_embs, added to the logits. A row without any key is zero.

    Raises ValueError where it is called as cross-attention, where the host adds keys of its own,
    and for tokens that would meet although attn_mask keeps some of them apart.

    Source: https://github.com/speechbrain/speechbrain/blob/develop/speechbrain/nnet/attention.py

    >>> FilteredMultiheadAttention.stock.__name__
    'MultiheadAttention'
    """

    stock = MultiheadAttention
    spectral = False

    @classmethod
    def count_heads(cls, module: nn.Module) -> int:
        """How many heads the attention of torch has that it wraps.

        Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html

        >>> FilteredMultiheadAttention.count_heads(MultiheadAttention(2, 8))
        2
        """
        att = module.get_submodule("att")
        if getattr(att, "bias_k", None) is not None or getattr(att, "add_zero_attn", False):
            raise ValueError("an attention with keys of its own has a map that is not square")
        return super().count_heads(att)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        return_attn_weights: bool | None = None,
        pos_embs: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """Attend as speechbrain does, with the filter between the map and the values."""
        att = self.att
        _check(query, key, value, attn_mask, att.out_proj)
        bias, ignored = _masks(attn_mask, key_padding_mask, att.num_heads)
        added, _ = _masks(pos_embs, None, att.num_heads)
        if added is not None:
            bias = added if bias is None else bias + added
        qkv = F.linear(query, att.in_proj_weight, att.in_proj_bias)
        q, k, v = qkv.view(*query.shape[:2], 3, att.num_heads, -1).permute(2, 0, 3, 1, 4)
        A = Softmax(q, k, _mask(bias, ignored), dropout=att.dropout if self.training else 0.0)
        y = att.out_proj(self.filter(A, v).transpose(1, 2).flatten(2))

        def maps() -> Tensor:
            A.dropout = 0.0  # to look at, not what has been applied
            return spectral.matrix(self.filter, A).mean(1)

        return _answer(y, maps, return_attn_weights)


class FilteredRelPosMHAXL(Filtered, RelPosMHAXL):
    r"""speechbrain's attention with relative positions, and a filter; with Plain bit for bit.

    .. math:: A_{ij} = \mathrm{softmax}_j\,
        \frac{(q_i + u)^\top k_j + (q_i + w)^\top p_{i-j}}{\sqrt{E}}

    The term of positions is N N logits whatever is done, so the map is formed, in no less than
    single precision; A^2 never is. `in_proj_weight` holds q, k and v of a head, then those of the
    next. Maps are H, (B, heads, N, N), where `return_attn_weights` is True; encoders of
    speechbrain, which name no choice, get None.

    Shapes: query (B, N, E), which key and value are too, pos_embs (1, 2 N - 1, E) -> (B, N, E);
    masks as in `FilteredMultiheadAttention`.

    Raises ValueError where it is called as cross-attention, and for tokens that would meet
    although attn_mask keeps some of them apart.

    Source: https://github.com/speechbrain/speechbrain/blob/develop/speechbrain/nnet/attention.py,
    https://arxiv.org/abs/1901.02860

    >>> FilteredRelPosMHAXL.stock.__name__
    'RelPosMHAXL'
    """

    stock = RelPosMHAXL
    spectral = False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pos_embs: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        return_attn_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """Attend as speechbrain does, with the filter between the map and the values."""
        _check(query, key, value, attn_mask, self.out_proj)
        bias, ignored = _masks(attn_mask, key_padding_mask, self.num_heads)
        qkv = F.linear(query, self.in_proj_weight)
        q, k, v = qkv.view(*query.shape[:2], self.num_heads, -1).chunk(3, -1)  # (B, N, heads, d)
        if self.vbias is not None:
            v = v + self.value_bias_weight.view(self.num_heads, -1)
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        logits = self._logits(q, k, pos_embs)
        if bias is not None:
            logits = logits + bias
        formed = self._map(logits, ignored).to(v.dtype)
        uniform = Softmax(k, k, None if ignored is None else ~ignored)
        A = Host(formed.__matmul__, like=v, average=uniform.average)
        y = self.out_proj(self.filter(A, v).transpose(1, 2).flatten(2))
        return _answer(y, lambda: spectral.matrix(self.filter, A), return_attn_weights)

    def _logits(self, q: Tensor, k: Tensor, pos_embs: Tensor) -> Tensor:
        # as the host has it: a (d, heads) parameter that is read as (heads, d)
        u, w = (b.view(self.num_heads, -1) for b in (self.pos_bias_u, self.pos_bias_v))
        p = self.linear_pos(pos_embs).view(1, -1, self.num_heads, self.head_dim).transpose(1, 2)
        content = ((q + u).transpose(1, 2) * self.scale) @ k.mT
        position = ((q + w).transpose(1, 2) * self.scale) @ p.mT
        return content + self.rel_shift(position)

    def _map(self, logits: Tensor, ignored: Tensor | None) -> Tensor:
        if ignored is not None:
            logits = logits.masked_fill(ignored, self.attn_fill_value)
        wide = torch.promote_types(logits.dtype, torch.float32)
        A = self.dropout_att(F.softmax(logits, dim=-1, dtype=wide))
        # a row without any key is not a number so far
        return A if ignored is None else A.masked_fill(ignored, 0.0)


def _check(q: Tensor, k: Tensor, v: Tensor, pairs: Tensor | None, proj: nn.Module) -> None:
    if not all(other is q or torch.equal(other, q) for other in (k, v)):
        raise ValueError("called as cross-attention, which stays Plain: its map has no powers")
    tokens = getattr(proj, "tokens", None)
    if pairs is not None and tokens is not None and not isinstance(tokens, LayerScale):
        raise ValueError(
            f"attn_mask keeps frames apart, and {type(tokens).__name__} would let each see others: "
            "of the functions of tokens LayerScale alone looks at each by itself"
        )


def _masks(
    pairs: Tensor | None, padding: Tensor | None, heads: int
) -> tuple[Tensor | None, Tensor | None]:
    """What is added to the logits, and what is ignored, both with the axes of (B, H, N, N)."""
    bias = ignored = None
    if pairs is not None:
        pairs = pairs.reshape(-1, heads if pairs.ndim == 3 else 1, *pairs.shape[-2:])
        floating = pairs.is_floating_point()
        bias, ignored = (pairs, ~support(pairs)) if floating else (None, pairs.bool())
    if padding is not None:
        padding = padding.bool()[:, None, None, :]
        ignored = padding if ignored is None else ignored | padding
    return bias, ignored


def _mask(bias: Tensor | None, ignored: Tensor | None) -> Tensor | None:
    """Both as one mask of ours, whose booleans say what is attended to."""
    if ignored is None:
        return bias
    return ~ignored if bias is None else bias.masked_fill(ignored, -torch.inf)


def _answer(
    y: Tensor, maps: Callable[[], Tensor], wanted: bool | None
) -> Tensor | tuple[Tensor, Tensor | None]:
    return y if wanted is False else (y, maps() if wanted else None)
