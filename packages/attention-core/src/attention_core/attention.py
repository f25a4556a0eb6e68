"""Our own attention module: one projection, a kernel, a filter, an output projection."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from attention_core.checks import (
    check_factories,
    check_heads,
    check_mechanism,
    check_models,
    check_probabilities,
    check_tokens,
)
from attention_core.filters.plain import Plain
from attention_core.kernels.common import at_least_float32, autocast_disabled, postprocess
from attention_core.mechanism import find_allowed_tokens
from attention_core.operators import Softmax
from attention_core.operators.base import read_mask
from attention_core.tokens.layerscale import LayerScale


class SelfAttention(nn.Module):
    r"""Multi-head self-attention with a slot for each kind of mechanism.

    .. math:: y = T(H(A) v \, W_O + b_O), \qquad A = \mathrm{kernel}(q, k, x)

    Shapes: x (B, N, D) -> (B, N, D); mask (B, N) boolean, True for a valid token, or a mask of
    three or four axes that broadcasts to (B, H, N, N), boolean or additive. `tokens` gets the valid
    tokens, of `valid_mask` (B, N) or else of the mask; ValueError if this keeps tokens apart that
    they or the kernel would mix.

    Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762

    Args:
        filter: `filter(num_heads)` makes H.
        kernel: `kernel(dim, num_heads)` makes A in place of a softmax.
        tokens: `tokens(dim)` makes T.
        reparam: `reparam(dim)` makes the spectrum of W_V W_O.
        bias: Add biases in both projections.
        dropout: Rate on A, of a softmax alone, with a new mask for each application.
        float32: Keep kernel and filter in single precision under autocast, as LRA's code does.

    >>> import torch
    >>> from attention_core import GFSA
    >>> SelfAttention(8, num_heads=2, filter=GFSA)(torch.randn(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        filter: Callable[[int], nn.Module] = Plain,
        kernel: Callable[[int, int], nn.Module] | None = None,
        tokens: Callable[[int], nn.Module] | None = None,
        reparam: Callable[[int], Any] | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        float32: bool = False,
    ) -> None:
        super().__init__()
        check_heads("SelfAttention", dim=dim, num_heads=num_heads)
        check_probabilities("SelfAttention", dropout=dropout)
        factories = {"filter": filter, "kernel": kernel, "tokens": tokens, "reparam": reparam}
        check_factories("SelfAttention", **factories)
        self.dim, self.num_heads, self.dropout = dim, num_heads, dropout
        self.float32 = float32
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.kernel = None if kernel is None else check_mechanism("kernel", kernel(dim, num_heads))
        self.filter = check_mechanism("filter", filter(num_heads))
        self.proj = nn.Linear(dim, dim, bias=bias)
        self.tokens = None if tokens is None else check_mechanism("tokens", tokens(dim))
        if reparam is not None:
            spectrum = check_mechanism("reparam", reparam(dim))
            spectrum.tie(self.qkv, self.proj, slice(2 * dim, 3 * dim))

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        is_causal: bool = False,
        valid_mask: Tensor | None = None,
    ) -> Tensor:
        """Attend, filter, project."""
        check_tokens("SelfAttention", x, self.dim)
        name = type(self.tokens).__name__
        mask = read_mask(mask, x.device)
        if is_causal and not (self.tokens is None or isinstance(self.tokens, LayerScale)):
            raise ValueError(f"{name} would leak future tokens: it cannot be causal")
        if x.shape[1] == 0:  # no token has anything to attend to
            return self.proj(x)
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))
        if self.float32:
            with autocast_disabled(x):
                z = self._attend(at_least_float32(qkv), at_least_float32(x), mask, is_causal)
        else:
            z = self._attend(qkv, x, mask, is_causal)
        z = self.proj(z.transpose(1, 2).flatten(2))  # (B, N, D)
        if self.tokens is None:
            return z
        if valid_mask is None and mask is not None and not isinstance(self.tokens, LayerScale):
            valid_mask = mask if mask.ndim == 2 else find_allowed_tokens(mask, name)
        return self.tokens(z, valid_mask)

    def _attend(self, qkv: Tensor, x: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, H, N, d)
        if mask is not None and mask.ndim <= 2:
            check_tokens("SelfAttention", x, self.dim, mask)
            mask = mask[:, None, None, :]
        if self.kernel is None:
            A: Any = Softmax(q, k, mask, is_causal, self.dropout if self.training else 0.0)
        elif is_causal:
            raise ValueError(f"{type(self.kernel).__name__} is bidirectional: it cannot be causal")
        else:
            A = self.kernel(q, k, x, mask)
        return postprocess(self.kernel, self.filter(A, v))


@contextmanager
def penalties(model: nn.Module) -> Iterator[list[Tensor]]:
    r"""Collect the terms that the kernels of a model add to the loss, in the passes inside.

    Each kernel with a `penalty(operator)` yields one scalar per forward pass. The papers add the
    mean over layers to the loss. Checkpoint layers by `use_reentrant=False`: the other kind gives
    the terms no gradient. Threads need models of their own.

    Source: eq. 12 of https://arxiv.org/abs/2505.08516

    >>> import torch
    >>> from attention_core import AGF
    >>> layer = SelfAttention(8, 2, kernel=lambda dim, num_heads: AGF(dim, num_heads, gamma=0.1))
    >>> with penalties(layer) as terms:
    ...     _ = layer(torch.randn(1, 5, 8))
    >>> len(terms), bool(torch.stack(terms).mean() > 0)
    (1, True)
    """
    terms: list[Tensor] = []

    def record(kernel: Any, inputs: tuple[Any, ...], operator: Any) -> None:
        # kept from a checkpoint, which recomputes without this hook, and counts its tensors
        kept = not torch.compiler.is_compiling() and saved_tensors_hooks(lambda x: x, lambda x: x)
        with kept or nullcontext():
            terms.append(kernel.penalty(operator))

    check_models("penalties", model=model)
    with ExitStack() as stack:
        for module in model.modules():
            # PEFT's wrapper of a kernel shows the kernel's attributes, but not in its class
            if hasattr(type(module), "penalty"):
                # compiled code looks for another `forward` in each pass, but not for a new hook
                stack.enter_context(patch.object(module, "forward", module.forward))
                stack.enter_context(module.register_forward_hook(record))
        yield terms
