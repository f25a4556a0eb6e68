"""ContraNorm (Guo et al. 2023), https://arxiv.org/abs/2303.06562"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_core.operators import Softmax, apply


class ContraNorm(nn.Module):
    r"""Push tokens away from the tokens that they resemble.

    .. math:: z = x - s W x, \qquad W = \mathrm{softmax}(\bar x \bar x^\top / \tau), \quad
        \bar x = x / \|x\|

    followed by a LayerNorm, so that scale 0 is a plain LayerNorm (the ViT module). Options:
    `dual` adds the softmax over queries, not halved; `pre_norm` puts the unit tokens in place of
    x; `identity` gives (1 + s) x - s W x; `learnable` makes s a vector over channels, where the
    released code drops the "+ x" of `identity`; `positive` keeps it in logarithms.
    `norm=False` leaves the LayerNorm out (BERT, graphs: with `identity`), `axis="feature"`
    contrasts channels, the d x d version.

    Shapes: x (B, N, D) -> (B, N, D); mask (B, N), True where a token is real (the released code
    has none, so that a result depends on its batch); edges (B, N, N), True where two nodes are
    joined and so not contrasted. O(N) memory unless dual.

    Raises ValueError for a negative scale, a temperature that is not positive, another axis, and
    a mask or edges together with axis="feature".

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
        axis: Literal["token", "feature"] = "token",
    ) -> None:
        super().__init__()
        _check(scale, temperature, axis)
        self.scale, self.temperature, self.dual = scale, temperature, dual
        self.identity, self.positive, self.pre_norm, self.axis = identity, positive, pre_norm, axis
        self.learnable = learnable
        start = math.log(scale) if positive and scale > 0 else scale
        self.scale_param = (
            nn.Parameter(torch.full((dim,), float(start))) if learnable and scale > 0 else None
        )
        self.norm = nn.LayerNorm(dim, eps=1e-6) if norm else nn.Identity()

    @property
    def init_args(self) -> dict[str, bool]:
        """The argument that no attribute of its name keeps, as `norm` is a module.

        Source: https://huggingface.co/docs/transformers/main_classes/configuration

        >>> ContraNorm(3, scale=0.2, norm=False).init_args
        {'norm': False}
        """
        return {"norm": isinstance(self.norm, nn.LayerNorm)}

    def forward(self, x: Tensor, mask: Tensor | None = None, edges: Tensor | None = None) -> Tensor:
        """Contrast, then normalise."""
        if self.scale == 0:
            return self.norm(x)
        unit = F.normalize(x, dim=-1, eps=1e-12)
        x = unit if self.pre_norm else x
        if self.axis == "feature" and (mask is not None or edges is not None):
            raise ValueError("ContraNorm over features takes neither a mask nor edges")
        Wx = self._similar(unit, x, self._pairs(mask, edges))
        if self.scale_param is None:
            kept = 1 + self.scale if self.identity else 1.0
            return self.norm(kept * x - self.scale * Wx)
        c = (self.scale_param.exp() if self.positive else self.scale_param).to(x.dtype)
        return self.norm((c if self.identity else 1.0) * x - c * Wx)

    def _similar(self, unit: Tensor, x: Tensor, allowed: Tensor | None) -> Tensor:
        if self.axis == "feature":
            unit, x = F.normalize(x, dim=-2, eps=1e-12).mT, x.mT
        unit, values = unit.unsqueeze(1), x.unsqueeze(1)  # one head: fused kernels want four axes
        W = Softmax(unit, unit, allowed, scale=1 / self.temperature)
        if self.dual:  # the logits are symmetric, so the softmax over queries is the transpose
            dense = W.dense()
            Wx = ((dense + dense.mT) @ values).squeeze(1)
        else:
            Wx = apply(W, values).squeeze(1)
        return Wx.mT if self.axis == "feature" else Wx

    def _pairs(self, mask: Tensor | None, edges: Tensor | None) -> Tensor | None:
        allowed = None if edges is None else ~edges.unsqueeze(1)
        if mask is not None:
            keys = mask[:, None, None, :]
            keys = keys & keys.mT if self.dual else keys
            allowed = keys if allowed is None else allowed & keys
        return allowed


def _check(scale: float, temperature: float, axis: str) -> None:
    if scale < 0:
        raise ValueError(f"ContraNorm's scale must not be negative, got {scale}")
    if temperature <= 0:
        raise ValueError(f"ContraNorm's temperature must be positive, got {temperature}")
    if axis not in ("token", "feature"):
        raise ValueError(f"ContraNorm's axis must be token or feature, got {axis!r}")
