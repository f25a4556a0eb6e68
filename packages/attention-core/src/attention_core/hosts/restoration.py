"""Restore a model: the classes, attributes, hooks and configs of its modules."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def restore_model(
    model: nn.Module, rewritten: Sequence[Tensor] = (), only_on_error: bool = False
) -> Iterator[None]:
    """Restore a model, and the values of rewritten weights, after the block or only its error."""
    modules = [(module, type(module)) for module in model.modules()]
    configs = (getattr(module, "config", None) for module, _ in modules)
    holders = [*model.modules(), *(c for c in configs if hasattr(c, "__dict__"))]
    # dicts keep their identity, for the handles of their hooks; a library's may be read-only
    dicts = [
        state
        for holder in holders
        for state in (vars(holder), *vars(holder).values())
        if isinstance(state, dict) and type(state).__module__ in ("builtins", "collections")
    ]
    saved = [(state, dict(state)) for state in dicts]
    trained = [(weight, weight.requires_grad) for weight in model.parameters()]
    weights = [(weight, weight.detach().clone()) for weight in rewritten]
    is_done = False
    try:
        yield
        is_done = only_on_error
    finally:
        if not is_done:
            for module, module_class in modules:
                module.__class__ = module_class
            for state, content in saved:
                state.clear()
                state.update(content)
            for parameter, is_trained in trained:
                if parameter.requires_grad != is_trained:  # an inference tensor refuses it
                    parameter.requires_grad_(is_trained)
            with torch.no_grad():
                for weight, value in weights:
                    if weight.layout != torch.strided or weight.is_meta:
                        continue  # which torch cannot compare
                    if weight.shape != value.shape:  # an observer's
                        weight.resize_(value.shape)
                    if not torch.equal(weight, value):
                        weight.copy_(value)
