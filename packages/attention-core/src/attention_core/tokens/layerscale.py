"""LayerScale of CaiT (Touvron et al. 2021), https://arxiv.org/abs/2103.17239"""

import torch
from torch import Tensor, nn

from attention_core.checks import check_finite, check_sizes, check_tokens
from attention_core.mechanism import Mechanism


class LayerScale(Mechanism):
    r"""Scale each channel of a branch by a learned factor that starts near 0.

    .. math:: z' = \gamma \odot z

    Shapes: z (B, N, D) -> (B, N, D); gamma (D,). It acts on each token alone: a mask has no effect.

    Source: section 2 of https://arxiv.org/abs/2103.17239

    Args:
        init: Start of gamma: in the released code 1e-4, 1e-5 for 24 layers, 1e-6 for deeper models.

    >>> LayerScale(3, init=0.5)(torch.ones(1, 1, 3))
    tensor([[[0.5000, 0.5000, 0.5000]]], grad_fn=<MulBackward0>)
    """

    def __init__(self, dim: int, init: float = 1e-4) -> None:
        super().__init__()
        check_sizes("LayerScale", dim=dim)
        check_finite("LayerScale", init=init)
        self.init = init
        self.gamma = nn.Parameter(torch.full((dim,), float(init)))

    def forward(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scale the output of attention, after its projection."""
        check_tokens("LayerScale", z, self.gamma.numel())
        return z * self.gamma.to(z.dtype)
