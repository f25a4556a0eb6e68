"""Filters of an attention map: (A, v) -> H v, one file each."""

from attention_core.filters.attnscale import AttnScale
from attention_core.filters.centered import CenteredAttention
from attention_core.filters.dropout import dropout_on_H, share_dropout
from attention_core.filters.gfsa import GFSA
from attention_core.filters.plain import Plain
from attention_core.filters.polynomial import Polynomial
from attention_core.filters.reattention import ReAttention
