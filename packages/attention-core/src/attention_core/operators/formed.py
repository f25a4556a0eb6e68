"""Softmax maps that no fused kernel computes: capped logits, and rows with an attention sink."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_core.checks import check_positive
from attention_core.operators.base import check_values
from attention_core.operators.softmax import Softmax


class FormedSoftmax(Softmax):
    r"""A softmax map whose logits are capped, or whose rows give a part of their sum to a sink.

    .. math:: A_{ij} = \frac{m_{ij} e^{s_{ij}}}{\sum_l m_{il} e^{s_{il}} + e^{\sigma_h}}, \qquad
        s = c \tanh\left(\frac{q k^\top \cdot \mathrm{scale}}{c}\right)

    m is 1 for an allowed pair and 0 for any other, c is `softcap`, and :math:`\sigma_h` is the sink
    of a head; an additive mask is added to s. The map is formed once, in O(N M) memory, and each
    `@` draws its own dropout mask. The other arguments are those of `Softmax`.

    Shapes: q (B, H, N, D), k (B, H, M, D), sinks (H,); `@` maps (B, H, M, E) to (B, H, N, E).

    Source: `Gemma 2 <https://arxiv.org/abs/2408.00118>`_, section 2, for the cap;
    `Xiao et al. 2024 <https://arxiv.org/abs/2309.17453>`_ for the sink.

    >>> q = torch.zeros(1, 1, 2, 4)
    >>> FormedSoftmax(q, q, sinks=torch.zeros(1)).dense().flatten()
    tensor([0.3333, 0.3333, 0.3333, 0.3333])
    """

    def __init__(
        self, *args: Any, softcap: float | None = None, sinks: Tensor | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        if softcap is not None:
            check_positive("FormedSoftmax", softcap=softcap)
        self.softcap, self.sinks = softcap, sinks
        self._formed: Tensor | None = None

    def __matmul__(self, v: Tensor) -> Tensor:
        """Apply the formed map."""
        check_values(v, self.k.shape[-2])
        if self._formed is None or torch.is_grad_enabled() > self._has_grad:
            self._formed, self._dropped = self.dense(), None
        A = self._dropped
        if A is None:
            A = F.dropout(self._formed, self.dropout) if self.dropout > 0 else self._formed
            self._dropped = A if self.shares_dropout else None
            self._has_grad = torch.is_grad_enabled()
        return A.to(v.dtype) @ v

    def polynomial(self, *args: Any) -> None:
        """Return None: every application uses the formed map."""

    def dense(self) -> Tensor:
        """Return the map itself, (B, H, N, M), without dropout."""
        logits = (self.q * self._scale()) @ self.k.mT
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return self._normalize(logits)

    def _softmax(self, logits: Tensor) -> Tensor:
        if self.sinks is None:
            return super()._softmax(logits)
        sinks = self.sinks.to(logits.dtype).reshape(-1, 1, 1).expand(*logits.shape[:-1], 1)
        return torch.cat([logits, sinks], -1).softmax(-1)[..., :-1]
