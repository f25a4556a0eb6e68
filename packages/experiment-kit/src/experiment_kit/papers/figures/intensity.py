"""High-frequency intensity of a ViT whose residuals and MLPs are removed, and its bounds."""

import math
from collections.abc import Callable
from typing import Any

import torch
from attention_core import plots
from attention_core.spectral import high_frequency_norm
from attention_core.theory import bound_multi_head_smoothing
from matplotlib.figure import Figure
from torch import Tensor, nn

from experiment_kit.diagnostics.hooks import eval_mode, forward_hooks, plain_filters
from experiment_kit.errors import UserError
from experiment_kit.papers.figures.models import call_network

PARTS = {
    "attention": (False, False),
    "attention, MLP": (False, True),
    "attention, residual": (True, False),
    "attention, residual, MLP": (True, True),
}
_GELU = 1.13  # its Lipschitz constant, rounded up


def draw_intensity(label: str, network: nn.Module, batch: Any, width: float) -> Figure:
    """Draw log(|HC X_l| / |X_0|) and its bound for each set of parts.

    Raises UserError for a network without blocks of norm1, attn, norm2 and mlp.
    """
    blocks = find_blocks(label, network)
    first = _catch_input(network, blocks[0], batch)
    with eval_mode(network), plain_filters(network):
        panels = {
            name: trace_intensity(blocks, first, residual, mlp)
            for name, (residual, mlp) in PARTS.items()
        }
    return plots.plot_bounds(panels, width)


def find_blocks(label: str, network: nn.Module) -> list[Any]:
    """Return the blocks of a ViT, in their order."""
    names = ("norm1", "attn", "norm2", "mlp")
    blocks = [m for m in network.modules() if all(hasattr(m, name) for name in names)]
    if not blocks or not all(hasattr(block.attn, "qkv") for block in blocks):
        raise UserError(f"{label} has no blocks of {', '.join(names)}, whose parts this figure "
                        "removes: name a ViT, as timm:deit_small_patch16_224")  # fmt: skip
    return blocks


@torch.no_grad()
def trace_intensity(
    blocks: list[Any], X: Tensor, residual: bool, mlp: bool
) -> tuple[list[float], list[float]]:
    r"""Return log(|HC X_l| / |X_0|) from l = 0, and the logarithm of its bound from l = 1.

    .. math:: \|\mathrm{HC}[X_l]\|_F \le \gamma_l \|\mathrm{HC}[N X_{l-1}]\|_F

    for attention alone, with N the norm in front of it, and gamma of proposition 4; a residual
    adds |HC X_{l-1}|, and an MLP its Lipschitz constant times |HC N'X'| of its own norm N'. The
    paper's bounds have no norms, which stay here. Shapes: X (B, N, D).

    Source: appendix F.1 and propositions 4 to 6 of https://arxiv.org/abs/2203.05962
    """
    scale = X.norm()
    measured, bounds = [_log_ratio(_norm(X), scale)], []
    for block in blocks:
        output, upper = _bound_attention(block, X)
        if residual:
            output, upper = X + output, _norm(X) + upper
        if mlp:
            inner = block.norm2(output)
            added = _scale(block, "ls2", block.mlp(inner))
            rate = _bound_mlp(block.mlp) * _largest(block, "ls2") * _norm(inner)
            # a bound does not carry over the norm: this part starts at what was measured
            upper = upper + rate if residual else rate
            output = output + added if residual else added
        X = output
        measured.append(_log_ratio(_norm(X), scale))
        bounds.append(_log_ratio(upper, scale))
    return measured, bounds


def _bound_attention(block: Any, X: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output of the attention, and the bound of its high-frequency norm."""
    u, attn = block.norm1(X), block.attn
    logits: list[Tensor] = []

    def keep_logits(filter: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        q, k, factor = inputs[0].q, inputs[0].k, inputs[0].scale
        logits.append(q @ k.mT * (q.shape[-1] ** -0.5 if factor is None else factor))

    with forward_hooks([attn.filter], keep_logits):
        output = _scale(block, "ls1", attn(u))
    heads = attn.num_heads
    W_V = attn.qkv.weight.chunk(3)[2].unflatten(0, (heads, -1)).mT  # (H, D, d)
    W_O = attn.proj.weight.unflatten(1, (heads, -1)).movedim(1, 0).mT  # (H, d, D)
    gamma = bound_multi_head_smoothing(logits[0], W_V, W_O, u).upper  # (B,)
    return output, gamma.norm() * _largest(block, "ls1")


def _bound_mlp(mlp: Any) -> float:
    factors = [torch.linalg.matrix_norm(m.weight, 2).item() for m in (mlp.fc1, mlp.fc2)]
    return math.prod(factors) * _GELU


def _scale(block: Any, name: str, x: Tensor) -> Tensor:
    return getattr(block, name, nn.Identity())(x)


def _largest(block: Any, name: str) -> float:
    gamma = getattr(getattr(block, name, None), "gamma", None)
    return 1.0 if gamma is None else gamma.abs().max().item()


def _norm(X: Tensor) -> Tensor:
    return high_frequency_norm(X).norm()


def _log_ratio(value: Tensor, scale: Tensor) -> float:
    return (value / scale).log().item()


def _catch_input(network: nn.Module, block: nn.Module, batch: Any) -> Tensor:
    found: list[Tensor] = []

    def keep_input(module: Callable[..., Any], inputs: tuple[Any, ...], output: Any) -> None:
        found.append(inputs[0])

    with torch.no_grad(), eval_mode(network), forward_hooks([block], keep_input):
        call_network(network, batch)
    return found[0]
