"""LayerScale of CaiT (Touvron et al. 2021), https://arxiv.org/abs/2103.17239"""

import torch
from torch import Tensor, nn


class LayerScale(nn.Module):
    r"""Scale each channel of a branch, from almost nothing.

    .. math:: z' = \gamma \odot z

    gamma starts at `init`: 1e-4 as in the released code, there 1e-5 for 24 layers, 1e-6 deeper.

    Shapes: z (B, N, D) -> (B, N, D); gamma (D,). Tokens do not meet, so that a mask changes
    nothing.

    Source: section 2 of https://arxiv.org/abs/2103.17239

    >>> LayerScale(3, init=0.5)(torch.ones(1, 1, 3))
    tensor([[[0.5000, 0.5000, 0.5000]]], grad_fn=<MulBackward0>)
    """

    def __init__(self, dim: int, init: float = 1e-4) -> None:
        super().__init__()
        self.init = init
        self.gamma = nn.Parameter(torch.full((dim,), float(init)))

    def forward(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scale the output of attention, after its projection."""
        return z * self.gamma.to(z.dtype)
