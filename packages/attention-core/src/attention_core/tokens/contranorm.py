"""ContraNorm (Guo et al. 2023), https://arxiv.org/abs/2303.06562"""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_core.checks import (
    check_choices,
    check_nonnegative,
    check_positive,
    check_sizes,
    check_tokens,
)
from attention_core.mechanism import Mechanism
from attention_core.operators import Softmax, apply_operator
from attention_core.operators.base import can_recompute

Axis = Literal["token", "feature", "channel"]


class ContraNorm(Mechanism):
    r"""Push each token away from the tokens that are similar to it.

    .. math:: z = x - s W x, \qquad W = \mathrm{softmax}(\bar x \bar x^\top / \tau), \quad
        \bar x = x / \|x\|

    and a LayerNorm, so that scale 0 is a plain LayerNorm (the ViT module).

    Shapes: x (B, N, D) -> (B, N, D); mask (B, N), True where a token is valid (the released code
    has no mask, so that a result depends on its batch); edges (B, N, N), True where two nodes are
    joined and therefore not contrasted. O(N) memory unless dual.

    Args:
        dual: Adds the softmax over queries to W, not halved.
        identity: Gives z = (1 + s) x - s W x.
        learnable: Makes s a vector over channels, for which the released code drops the "+ x" of
            `identity`; with `positive`, log s is stored.
        pre_norm: Takes the unit tokens in place of x.
        norm: If false, no LayerNorm follows (BERT, graphs: with `identity`).
        axis: `feature` is the released second version: x W, with W = softmax(unit^T unit / tau) of
            the unit tokens, d x d. With `channel`, channels are normalized over tokens and
            contrasted as tokens are: x W^T.

    Source: eq. 6 of https://arxiv.org/abs/2303.06562

    >>> x = torch.randn(2, 5, 3)
    >>> torch.allclose(ContraNorm(3, scale=0.0)(x), F.layer_norm(x, (3,), eps=1e-6))
    True
    """

    def __init__(
        self,
        dim: int,
        scale: float,
        temperature: float = 1.0,
        dual: bool = False,
        identity: bool = False,
        learnable: bool = False,
        positive: bool = False,
        pre_norm: bool = False,
        norm: bool = True,
        axis: Axis = "token",
    ) -> None:
        super().__init__()
        self.init_args = {"norm": norm}
        check_sizes("ContraNorm", dim=dim)
        check_nonnegative("ContraNorm", scale=scale)
        check_positive("ContraNorm", temperature=temperature)
        check_choices("ContraNorm", axis=(axis, Axis))
        self.scale, self.temperature, self.dual = scale, temperature, dual
        self.identity, self.positive, self.pre_norm, self.axis = identity, positive, pre_norm, axis
        self.dim, self.learnable = dim, learnable
        start = math.log(scale) if positive and scale > 0 else scale
        self.scale_param = (
            nn.Parameter(torch.full((dim,), float(start))) if learnable and scale > 0 else None
        )
        self.norm = nn.LayerNorm(dim, eps=1e-6) if norm else nn.Identity()

    def forward(self, x: Tensor, mask: Tensor | None = None, edges: Tensor | None = None) -> Tensor:
        """Contrast the tokens, then normalize them."""
        check_tokens("ContraNorm", x, self.dim, mask)
        if self.scale == 0:
            return self.norm(x)
        unit = F.normalize(x, dim=-1, eps=max(1e-12, torch.finfo(x.dtype).tiny))
        x = unit if self.pre_norm else x
        if self.axis != "token" and (mask is not None or edges is not None):
            raise ValueError("ContraNorm over features takes neither a mask nor edges")
        Wx = self._average_similar(unit, x, self._allowed_pairs(mask, edges))
        if self.scale_param is None:
            factor = 1 + self.scale if self.identity else 1.0
            return self.norm(factor * x - self.scale * Wx)
        c = (self.scale_param.exp() if self.positive else self.scale_param).to(x.dtype)
        return self.norm((c if self.identity else 1.0) * x - c * Wx)

    def _average_similar(self, unit: Tensor, x: Tensor, allowed: Tensor | None) -> Tensor:
        if self.axis == "feature":
            weights = ((unit.mT @ unit) / self.temperature).softmax(-1)  # (B, D, D)
            return x @ (weights + weights.mT if self.dual else weights)
        if self.axis == "channel":
            unit, x = F.normalize(x, dim=-2, eps=max(1e-12, torch.finfo(x.dtype).tiny)).mT, x.mT
        unit, values = unit.unsqueeze(1), x.unsqueeze(1)  # (B, 1, N, D): fused kernels need heads
        W: Any = Softmax(unit, unit, allowed, scale=1 / self.temperature)
        # faster on a CPU than a fused kernel, in the memory of twice the tokens at most
        is_small = can_recompute(unit, unit, values) and unit.shape[-2] <= 2 * unit.shape[-1]
        W = W.dense() if self.dual or is_small else W
        if self.dual:  # the softmax over queries is the transpose, as the logits are symmetric
            W = W + W.mT
        Wx = apply_operator(W, values).squeeze(1)
        return Wx.mT if self.axis == "channel" else Wx

    def _allowed_pairs(self, mask: Tensor | None, edges: Tensor | None) -> Tensor | None:
        if edges is not None and edges.dtype != torch.bool:
            raise ValueError(f"ContraNorm's edges must be boolean, got {edges.dtype}")
        allowed = None if edges is None else ~edges.unsqueeze(1)
        if mask is not None:
            keys = mask[:, None, None, :]
            keys = keys & keys.mT if self.dual else keys
            allowed = keys if allowed is None else allowed & keys
        return allowed
