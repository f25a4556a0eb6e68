"""Performer, or FAVOR+ (Choromanski et al. 2021), https://arxiv.org/abs/2009.14794"""

from typing import Literal

import torch
from torch import Tensor

from attention_core.checks import check_choices, check_ints, check_nonnegative, check_sizes
from attention_core.kernels.common import (
    Kernel,
    at_least_float32,
    autocast_disabled,
    key_mask,
    zero_padding,
)
from attention_core.kernels.linear import FeatureMap

Activation = Literal["softmax", "relu"]
Scaled = Literal["once", "twice"]
MaskKeys = Literal["removed", "zeroed"]


def orthogonal_gaussian(rows: int, width: int, device: torch.device | None = None) -> Tensor:
    """Draw Gaussian vectors that are orthogonal within each block of `width` rows.

    Each block is a uniform random rotation whose rows get the length of a Gaussian vector (chi).
    The signs of R make the rotation uniform: the Q of a QR decomposition alone is biased.

    Shapes: -> (rows, width).

    Source: section 2.4 of https://arxiv.org/abs/2009.14794, https://arxiv.org/abs/math-ph/0609050
    """
    Q, R = torch.linalg.qr(torch.randn(-(-rows // width), width, width, device=device))
    Q = Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    lengths = torch.randn(rows, width, device=device).norm(dim=-1, keepdim=True)
    return lengths * Q.mT.flatten(0, 1)[:rows]


class Performer(Kernel):
    r"""Linear attention whose random features have the softmax kernel as their expectation.

    .. math::
        A_{ij} = \frac{\phi(q_i) \cdot \phi(k_j)}{\sum_l \phi(q_i) \cdot \phi(k_l)}, \quad
        \phi(u) = \exp(u \omega^\top - |u|^2 / 2 - c) + \epsilon

    for u = q, k over d^(1/4). omega has rows of `orthogonal_gaussian`, is shared by all heads and
    saved in checkpoints. c keeps the exponential below 1: it is the largest u omega of each query,
    and of all keys of a sample and head; it has no gradient. Nystromformer's code runs it on LRA
    with softmax, since performer-pytorch ignores the relu that it is given, `twice` and `zeroed`.

    Shapes: those of `Kernel`, x unused. With M features time O(N M D), memory O(N M H).

    Source: lemma 1 of https://arxiv.org/abs/2009.14794

    Args:
        features: Number of rows of omega.
        activation: softmax as above, or relu: phi = relu(u omega) + eps, published with eps 1e-3.
        eps: Added to each feature.
        scaled: `once` has the logits q.k / sqrt(d), `twice` q.k / d.
        mask_keys: `removed` leaves padding out; `zeroed` sets it to 0 before phi, whose phi(0)
            stays in the denominator, so that padding dilutes the map.
        redraw_every: Training passes with one omega; 0 keeps the first. Evaluation never draws.

    >>> q = k = torch.zeros(1, 2, 3, 4)  # all alike: every token takes the mean
    >>> torch.allclose(Performer(8, 2)(q, k, torch.zeros(1, 3, 8)).dense(), torch.tensor(1 / 3))
    True
    """

    projection: Tensor
    passes: Tensor

    def __init__(
        self,
        dim: int,
        num_heads: int,
        features: int = 256,
        activation: Activation = "softmax",
        eps: float = 1e-4,
        scaled: Scaled = "once",
        mask_keys: MaskKeys = "removed",
        redraw_every: int = 0,
    ) -> None:
        super().__init__(dim, num_heads)
        self.init_args = {"features": features}
        check_choices("Performer", activation=(activation, Activation))
        check_choices("Performer", scaled=(scaled, Scaled), mask_keys=(mask_keys, MaskKeys))
        check_sizes("Performer", features=features)
        check_nonnegative("Performer", eps=eps)
        check_ints("Performer", 0, redraw_every=redraw_every)
        self.activation, self.eps, self.scaled = activation, eps, scaled
        self.mask_keys, self.redraw_every = mask_keys, redraw_every
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))  # saved: runs resume
        self.register_buffer("projection", orthogonal_gaussian(features, dim // num_heads))

    def forward(self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None) -> FeatureMap:
        """Compute the map of these tokens."""
        # not in a backward pass, where activation checkpointing runs this again
        if self.training and self.redraw_every and torch._C._current_graph_task_id() < 0:
            if self.passes and self.passes % self.redraw_every == 0:
                # a new tensor: earlier passes keep the old one for their gradients
                rows, width = self.projection.shape
                omega = orthogonal_gaussian(rows, width, self.projection.device)
                self.projection = omega.to(self.projection.dtype)
            self.passes += 1
        valid = key_mask(mask, q, k)
        if self.mask_keys == "removed":
            return FeatureMap(self.phi(q, (-1,)), self.phi(k, (-2, -1), valid), valid)
        right = self.phi(zero_padding(k, valid), (-2, -1))
        return FeatureMap(self.phi(q, (-1,)), right, valid, counts_padding=True)

    def phi(self, u: Tensor, largest: tuple[int, ...], valid: Tensor | None = None) -> Tensor:
        """Compute the features of queries or keys, (B, H, N, M), less M^(-1/2), which cancels in A.

        `largest` are the axes of the maximum c, `valid` the tokens over which it is taken.
        """
        u = at_least_float32(u) * u.shape[-1] ** (-0.25 if self.scaled == "once" else -0.5)
        with autocast_disabled(u):  # the exponential amplifies rounding errors
            logits = u @ self.projection.to(u.dtype).mT
        if self.activation == "relu":
            return logits.relu() + self.eps
        if valid is not None:
            logits.masked_fill_(~valid.mT, torch.finfo(logits.dtype).min)
        shift = u.square().sum(-1, keepdim=True) / 2 + logits.detach().amax(largest, keepdim=True)
        return logits.sub_(shift).exp_() + self.eps  # in place: neither is read backward
