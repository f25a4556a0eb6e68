"""Look at the filters of a model, and give them random weights."""

from collections.abc import Callable
from typing import Any

from attention_core.hosts.adapter import Filtered
from torch import nn


def filtered_modules(model: nn.Module) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Filtered)}


def filters(model: nn.Module) -> list[Any]:
    return [module.filter for module in filtered_modules(model).values()]


def randomize(model: nn.Module, part: str = "filter") -> nn.Module:
    """Draw the weights of all filters, or of all functions of tokens."""
    for name, weight in model.named_parameters():
        if part in name.split("."):
            nn.init.normal_(weight, std=0.7)
    return model


def count_trained(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def find_untrained(model: nn.Module) -> list[str]:
    """Return the trainable parameters that the last backward pass did not reach."""
    return [name for name, w in model.named_parameters() if w.requires_grad and w.grad is None]


def count_hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def record_calls(modules: list[nn.Module], call: Callable[[], Any]) -> list[tuple[Any, Any]]:
    """Return the inputs and the output of each module during a call."""
    calls: list[tuple[Any, Any]] = []
    for module in modules:
        module.register_forward_hook(lambda m, inputs, output: calls.append((inputs, output)))
    call()
    return calls
