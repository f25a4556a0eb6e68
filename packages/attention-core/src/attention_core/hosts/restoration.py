"""Restore a model: the classes, attributes, hooks and configs of its modules."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def _save_state(model: nn.Module, rewritten: Sequence[Tensor]) -> Callable[[], None]:
    """Return the function that restores the model, and the values of the rewritten weights."""
    modules = [(module, type(module)) for module in model.modules()]
    configs = (getattr(module, "config", None) for module, _ in modules)
    holders = [*model.modules(), *(c for c in configs if hasattr(c, "__dict__"))]
    # dicts keep their identity: the handle of a hook refers to the dict that holds the hook
    dicts = [
        state
        for holder in holders
        for state in (vars(holder), *vars(holder).values())
        if isinstance(state, dict)
    ]
    saved = [(state, dict(state)) for state in dicts]
    weights = [(weight, weight.detach().clone()) for weight in rewritten]

    def restore() -> None:
        for module, module_class in modules:
            module.__class__ = module_class
        for state, content in saved:
            state.clear()
            state.update(content)
        with torch.no_grad():
            for weight, value in weights:
                weight.copy_(value)

    return restore


@contextmanager
def restore_on_error(model: nn.Module, rewritten: Sequence[Tensor]) -> Iterator[None]:
    """Restore a model, and the rewritten weights, after an exception."""
    restore = _save_state(model, rewritten)
    try:
        yield
    except BaseException:
        restore()
        raise


@contextmanager
def restore_model(model: nn.Module) -> Iterator[None]:
    """Restore a model in any case: what is attached, hooked or set inside is temporary."""
    restore = _save_state(model, [])
    try:
        yield
    finally:
        restore()
