"""What can be counted of a model without running it: multiply-adds and parameters."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from attention_core import GFSA
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

Inputs = tuple[Tensor, ...]
ADDED = ("attention_core.filters", "attention_core.tokens")


def multiply_adds(network: nn.Module, inputs: Inputs) -> tuple[int, int]:
    """Count the multiply-adds of a forward pass: as it runs, and as GFSA's own code would do it.

    That code forms A^2 (n^3 a head) where ours multiplies by A a second time. Products and
    convolutions are counted, half of what PyTorch calls FLOPs; the papers print such numbers.

    >>> multiply_adds(nn.Linear(3, 5), (torch.zeros(2, 3),))
    (30, 30)
    """
    # on the meta device nothing is computed, and fused attention is counted as its products
    network = copy.deepcopy(network).to("meta").eval().requires_grad_(False)
    inputs = tuple(x.to("meta") for x in inputs)
    excess = 0

    def squared(filter: nn.Module, arguments: Any, _: Tensor) -> None:
        nonlocal excess
        A, v = arguments
        *batch, n, _width = v.shape
        excess += 2 * torch.Size(batch).numel() * n**3 - _flops(lambda: A @ v)

    flops = _flops(lambda: network(*inputs))
    for module in network.modules():
        if isinstance(module, GFSA):
            module.register_forward_hook(squared)
    network(*inputs)
    return flops // 2, (flops + excess) // 2


def parameters(network: nn.Module) -> dict[str, int]:
    """Count the trainable parameters, and those that filters and token mechanisms have of them.

    >>> parameters(nn.Sequential(nn.Linear(3, 5), GFSA(num_heads=4)))
    {'parameters': 24, 'extra_parameters': 4}
    """
    added = [m for m in network.modules() if type(m).__module__.startswith(ADDED)]
    extra = {p for module in added for p in module.parameters() if p.requires_grad}
    return {
        "parameters": sum(p.numel() for p in network.parameters() if p.requires_grad),
        "extra_parameters": sum(p.numel() for p in extra),
    }


def _flops(step: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()
