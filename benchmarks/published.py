"""GFSA as published code computes it: from (N, N) maps, A^2 among them."""

from typing import Any

from attention_core import GFSA, Softmax
from torch import Tensor, nn


class PublishedGFSA(GFSA):
    """GFSA of https://github.com/jeongwhanchoi/GFSA, without the identity matrix built there."""

    scales_map = True  # by w1; the published code for graphs and speech has no w1

    def forward(self, A: Any, v: Tensor) -> Tensor:
        if isinstance(A, Softmax):
            A = nn.functional.dropout(A.dense(), A.dropout)
        elif not isinstance(A, Tensor):
            A = A @ A.eye()  # with relative positions, A has had its dropout already
        w1, wK = self.w1.to(v.dtype).view(-1, 1, 1), self.wK.to(v.dtype).view(-1, 1, 1)
        return ((w1 * A if self.scales_map else A) + wK * (A + (self.K - 1) * (A @ A - A))) @ v


class PublishedGFSAWithoutW1(PublishedGFSA):
    scales_map = False
