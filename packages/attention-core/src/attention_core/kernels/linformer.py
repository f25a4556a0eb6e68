"""Linformer (Wang et al. 2020), https://arxiv.org/abs/2006.04768"""

from typing import Literal

import torch
from torch import Tensor, nn

from attention_core.checks import check_choices, check_sizes
from attention_core.kernels.common import Kernel, key_mask, zero_padding
from attention_core.operators import LowRank
from attention_core.operators.base import check_values

Init = Literal["normal", "uniform"]


def mix_tokens(E: Tensor, t: Tensor, valid: Tensor | None) -> Tensor:
    """Compute E t of each head, (B, H, rank, d), without a copy of E for each sample and head."""
    return torch.einsum("hrn,bhnd->bhrd", E, zero_padding(t, valid))


class MixedTokens(LowRank):
    """A softmax over mixtures of the values, left (B, H, N, rank) and F (H or 1, rank, N)."""

    def __init__(self, left: Tensor, F: Tensor, valid: Tensor | None) -> None:
        super().__init__(left, zero_padding(F.mT.expand(*left.shape[:2], -1, -1), valid), valid)
        self.F = F

    def __matmul__(self, v: Tensor) -> Tensor:
        """Mix the values, then weigh the mixtures."""
        check_values(v, self.F.shape[-1])
        return self.left @ mix_tokens(self.F, v, self.mask)


class Linformer(Kernel):
    r"""Softmax attention to `rank` learned mixtures of the tokens instead of the tokens.

    .. math:: A = \mathrm{softmax}(q (E k)^\top / \sqrt d) \, F

    The defaults are those of Nystromformer's LRA code, which shares E among layers too; lucidrains'
    code has E and F for all heads, and no mask. E mixes positions: a sequence shorter than `length`
    uses the first columns. Padding is set to zero before the tokens are mixed.

    Shapes: those of `Kernel`, x unused; E, F (H, rank, length), or (1, rank, length) for all heads.
    Time O(N rank D), memory O(N rank H).

    Source: eq. 7 of https://arxiv.org/abs/2006.04768

    Args:
        length: Tokens of the longest sequence.
        rank: Number of mixtures.
        share_kv: Take F = E.
        per_head: Learn E and F for each head; else one for all.
        init: normal draws from N(0, 0.02^2), uniform from U(-1/sqrt(rank), 1/sqrt(rank)).
        share_layers: Share E and F among layers, in a model that connects them, as ours do.

    >>> linformer = Linformer(8, 2, length=5, rank=1)  # one mixture, so all weigh it by 1
    >>> A = linformer(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4), torch.zeros(1, 3, 8))
    >>> torch.equal(A.dense()[0, :, 2], linformer.E[:, 0, :3])
    True
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        length: int = 512,
        rank: int = 256,
        share_kv: bool = True,
        per_head: bool = True,
        init: Init = "normal",
        share_layers: bool | None = None,
    ) -> None:
        super().__init__(dim, num_heads)
        self.init_args = {"rank": rank, "share_kv": share_kv, "per_head": per_head}
        check_sizes("Linformer", length=length, rank=rank)
        check_choices("Linformer", init=(init, Init))
        self.length, self.init, self.share_layers = length, init, share_layers
        shape = (num_heads if per_head else 1, rank, length)
        self.E = nn.Parameter(torch.empty(shape))
        self.F = None if share_kv else nn.Parameter(torch.empty(shape))
        for weight in self.parameters():
            if self.init == "normal":
                nn.init.normal_(weight, std=0.02)
            else:
                bound = weight.shape[1] ** -0.5
                nn.init.uniform_(weight, -bound, bound)

    def follow_layer(self, before: nn.Module) -> None:
        """Share the weights of the layer before, if `share_layers` says so."""
        if self.share_layers and isinstance(before, Linformer):
            self.E, self.F = before.E, before.F

    def forward(self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None) -> MixedTokens:
        """Compute the map of these tokens."""
        valid, n = key_mask(mask, q, k), k.shape[-2]
        if n > self.length:
            raise ValueError(f"Linformer was made for {self.length} tokens, got {n}")
        E = self.E[..., :n].to(k.dtype)
        F = E if self.F is None else self.F[..., :n].to(k.dtype)
        left = (q * q.shape[-1] ** -0.5 @ mix_tokens(E, k, valid).mT).softmax(-1).to(q.dtype)
        return MixedTokens(zero_padding(left, valid), F, valid)
