"""Tokens by depth in stacks of 48 random layers, with each part of a block."""

from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from attention_core import SelfAttention, spectral
from torch import Tensor, nn

from benchmarks.evidence.methods import STACKED, Method
from benchmarks.evidence.settings import StackSettings

STACKS = {
    "attention": "attention alone",
    "residual": "+ residual",
    "mlp": "+ residual + MLP",
    "pre_ln": "pre-LN block",
    "post_ln": "post-LN block",
}


def list_units(settings: StackSettings) -> list[dict[str, Any]]:
    """List the arguments of `measure_stack`, one mapping a stack."""
    sizes = {key: value for key, value in asdict(settings).items() if key != "seeds"}
    return [
        {"stack": stack, "name": name, "method": method.describe_layer(), "seed": seed, **sizes}
        for stack in STACKS
        for name, method in STACKED.items()
        for seed in settings.seeds
    ]


def measure_stack(
    stack: str, name: str, method: dict[str, Any], seed: int, dim: int, num_heads: int,
    num_tokens: int, num_samples: int, depths: tuple[int, ...],
) -> list[dict[str, Any]]:  # fmt: skip
    """Measure the tokens at each depth, one row a depth, as means over samples."""
    torch.manual_seed(seed)
    x = torch.randn(num_samples, num_tokens, dim, dtype=torch.float64)
    rows = []
    for depth in range(max(depths) + 1):
        if depth > 0:
            # one seed a layer: a kernel with weights of its own must not shift later draws
            torch.manual_seed(10_000 * seed + depth)
            attention = draw_attention(Method(**method), dim, num_heads)
            x = apply_block(stack, attention, draw_mlp(dim), x)
        if depth in depths:
            rows.append({"stack": stack, "method": name, "seed": seed, "depth": depth}
                        | measure_tokens(x))  # fmt: skip
    return rows


def measure_tokens(x: Tensor) -> dict[str, float]:
    """Compute the three measures of tokens, as means over samples."""
    return {
        "token_cosine": spectral.token_cosine(x).mean().item(),
        "hfc_lfc": spectral.hfc_lfc(x).mean().item(),
        "effective_rank": spectral.effective_rank(x).mean().item(),
    }


def draw_attention(method: Method, dim: int, num_heads: int) -> SelfAttention:
    """Draw a layer whose projections keep the variance of their input.

    The default of `nn.Linear` has a third of it: its logits are so small that every map is almost
    uniform, and even one layer makes all tokens equal.
    """
    weights = [torch.randn(3 * dim, dim), torch.randn(dim, dim)]
    attention = method.build_attention(dim, num_heads)
    with torch.no_grad():
        for linear, weight in zip([attention.qkv, attention.proj], weights, strict=True):
            linear.weight.copy_(weight / dim**0.5)
            linear.bias.zero_()
    return attention.double()


def draw_mlp(dim: int) -> nn.Sequential:
    """Draw a two-layer MLP of width 4 dim that keeps the variance of its input."""
    mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)).double()
    for linear in (mlp[0], mlp[2]):
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
    return mlp


@torch.no_grad()
def apply_block(stack: str, attention: nn.Module, mlp: nn.Module, x: Tensor) -> Tensor:
    """Apply one layer of a stack.

    Without a LayerNorm all tokens of a sample are divided by their common root mean square. It
    changes no measure, as all are ratios, and keeps the logits at one scale, so that maps neither
    become uniform nor saturate because tokens shrink or grow.
    """
    norm = (x.shape[-1],)
    if stack == "pre_ln":
        x = x + attention(F.layer_norm(x, norm))
        return x + mlp(F.layer_norm(x, norm))
    if stack == "post_ln":
        x = F.layer_norm(x + attention(x), norm)
        return F.layer_norm(x + mlp(x), norm)
    x = attention(x) if stack == "attention" else x + attention(x)
    x = x + mlp(x) if stack == "mlp" else x
    return divide_by_rms(x)


def divide_by_rms(x: Tensor) -> Tensor:
    """Divide the tokens of each sample by one number, so that their mean square is 1."""
    return x / x.square().mean((-2, -1), keepdim=True).sqrt()
