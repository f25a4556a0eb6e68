"""FeatScale (Wang et al. 2022), https://arxiv.org/abs/2203.05962"""

import torch
from torch import Tensor, nn

from attention_core.checks import check_ints, check_sizes, check_tokens
from attention_core.mechanism import Mechanism
from attention_core.operators import masked_mean


class FeatScale(Mechanism):
    r"""Rescale, channel by channel, the mean of the tokens and the difference from it.

    .. math:: z' = \mathrm{DC}[z] (1 + g s) + \mathrm{HC}[z] (1 + g t)

    with DC the mean over tokens, HC = z - DC and g the `gain`. s and t start at 0.

    Shapes: z (B, N, D) -> (B, N, D); mask (B, N), True where a token is valid; s, t (D,).

    Source: eqs. 10-12 of https://arxiv.org/abs/2203.05962

    Args:
        gain: 1 in the paper; 2 in the released DeiT code, which adds the terms twice (as its
            weights need).

    >>> z = torch.randn(2, 5, 3)
    >>> torch.equal(FeatScale(3)(z), z)
    True
    """

    def __init__(self, dim: int, gain: int = 1) -> None:
        super().__init__()
        check_sizes("FeatScale", dim=dim)
        check_ints("FeatScale", 1, 2, gain=gain)
        self.gain = gain
        self.s = nn.Parameter(torch.zeros(dim))
        self.t = nn.Parameter(torch.zeros(dim))

    def forward(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scale the output of attention, after its projection."""
        check_tokens("FeatScale", z, self.s.numel(), mask)
        s, t = self.s.to(z.dtype), self.t.to(z.dtype)
        # a parameter times a number has no export to ONNX
        dc = self.gain * masked_mean(z, None if mask is None else mask.unsqueeze(-2))
        # z + s DC + t (z - DC): 1 + t would be rounded to 1 in half precision where t is small
        return torch.addcmul(z + dc * (s - t), z, t, value=self.gain)
