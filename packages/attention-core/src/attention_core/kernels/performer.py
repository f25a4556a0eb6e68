"""Performer, or FAVOR+ (Choromanski et al. 2021), https://arxiv.org/abs/2009.14794"""

from typing import Literal

import torch
from torch import Tensor, nn

from attention_core.kernels.linear import normalised
from attention_core.kernels.parts import choose, exact, key_mask, real, wide
from attention_core.operators import LowRank

Activation = Literal["softmax", "relu"]
Scaled = Literal["once", "twice"]
MaskKeys = Literal["removed", "zeroed"]


def orthogonal_gaussian(rows: int, width: int, device: torch.device | None = None) -> Tensor:
    """Gaussian vectors, as many as there are rows, orthogonal within each `width` of them.

    Every block is a random rotation, every row as long as a Gaussian vector of its width (chi).
    The signs of R make it one: a library's Q alone leans to one side. Drawn from torch's RNG.

    Shapes: -> (rows, width).

    Source: section 2.4 of https://arxiv.org/abs/2009.14794, https://arxiv.org/abs/math-ph/0609050

    >>> w = orthogonal_gaussian(5, 3)
    >>> torch.allclose(w[:3] @ w[:3].mT, torch.diag(w[:3].square().sum(-1)), atol=1e-5)
    True
    """
    blocks = -(-rows // width)
    Q, R = torch.linalg.qr(torch.randn(blocks, width, width, device=device))
    Q = Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    lengths = torch.randn(rows, width, device=device).norm(dim=-1, keepdim=True)
    return lengths * Q.mT.flatten(0, 1)[:rows]


class Performer(nn.Module):
    r"""Linear attention whose random features have the softmax kernel as their expectation.

    .. math::
        A_{ij} = \frac{\phi(q_i) \cdot \phi(k_j)}{\sum_l \phi(q_i) \cdot \phi(k_l)}, \quad
        \phi(u) = \exp(u \omega^\top - |u|^2 / 2 - c) + \epsilon

    for u of q and k over d^(1/4), with `features` rows of `orthogonal_gaussian` as omega, one for
    all heads, a buffer that checkpoints carry. c keeps the exponential below 1: the largest
    u omega of each query, and of all keys of a sample and head; it has no gradient.
    `activation="relu"` is the generalised variant, phi = relu(u omega) + eps, published with eps
    1e-3.

    As run on LRA by Nystromformer's code: activation softmax, since performer-pytorch ignores
    the relu that it is given; `scaled` twice, so that the logits are q.k / d; `mask_keys` zeroed
    before phi, which leaves phi(0) in the denominator, so that padding dilutes the map. Ours are
    q.k / sqrt(d), and padding removed. `redraw_every` counts training passes with one omega; 0
    keeps the first. Evaluation never draws.

    Shapes: q, k (B, H, N, d), x (B, N, D) is unused, mask (B, N) or (B, 1, 1, N), True where a
    token is real; rows and columns of padding are zero. With M features time O(N M D), memory
    O(N M H); never causal.

    Raises ValueError for an unknown choice, a number out of range, a width that the heads do not
    divide, and a mask that depends on the query.

    Source: lemma 1 of https://arxiv.org/abs/2009.14794

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
        super().__init__()
        choose("Performer's activation", activation, ("softmax", "relu"))
        choose("Performer's scaled", scaled, ("once", "twice"))
        choose("Performer's mask_keys", mask_keys, ("removed", "zeroed"))
        if features < 1 or eps < 0 or redraw_every < 0:
            raise ValueError(
                "Performer needs features of at least 1, and eps and redraw_every of at least 0, "
                f"got {features}, {eps} and {redraw_every}"
            )
        if dim % num_heads:
            raise ValueError(f"the width {dim} is not divisible by {num_heads} heads")
        self.activation, self.eps, self.scaled = activation, eps, scaled
        self.mask_keys, self.redraw_every = mask_keys, redraw_every
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))  # saved: runs resume
        self.register_buffer("projection", orthogonal_gaussian(features, dim // num_heads))

    def forward(self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None) -> LowRank:
        """Make the map of these tokens."""
        if self.training and self.redraw_every:
            self._count()
        keep = key_mask(mask)
        if self.mask_keys == "removed":
            left, right = self.phi(q, (-1,)), self.phi(k, (-2, -1), keep)
            return normalised(left, right, keep, q.dtype)
        left, right = self.phi(q, (-1,)), self.phi(real(k, keep), (-2, -1))
        return normalised(left, right, keep, q.dtype, total=right.sum(-2, keepdim=True))

    def phi(self, u: Tensor, largest: tuple[int, ...], keep: Tensor | None = None) -> Tensor:
        """The features of queries or keys, (B, H, N, M); their factor M^(-1/2) cancels in A.

        `largest` are the axes over which c is taken, `keep` the tokens that it looks at.
        """
        u = wide(u) * u.shape[-1] ** (-0.25 if self.scaled == "once" else -0.5)
        with exact(u):  # the exponential magnifies rounding
            logits = u @ self.projection.to(u.dtype).mT
        if self.activation == "relu":
            return logits.relu() + self.eps
        if keep is not None:
            logits = logits.masked_fill(~keep.mT, torch.finfo(logits.dtype).min)
        c = logits.detach().amax(largest, keepdim=True)
        return (logits - u.square().sum(-1, keepdim=True) / 2 - c).exp() + self.eps

    def redraw(self) -> None:
        """Draw omega anew; passes whose gradients are still to come keep the old one."""
        rows, width = self.projection.shape
        omega = orthogonal_gaussian(rows, width, self.projection.device)
        self.projection = omega.to(self.projection.dtype)

    def _count(self) -> None:
        if self.passes and self.passes % self.redraw_every == 0:
            self.redraw()
        self.passes += 1
