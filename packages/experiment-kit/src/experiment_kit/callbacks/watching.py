"""Look into a model as it runs, and leave it as it was."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import nn
from torch.distributed.fsdp import FSDPModule


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Have sharded weights whole on every device."""
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in sharded:
        module.unshard()
    try:
        yield
    finally:
        for module in sharded:
            module.reshard()


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """Have a model in eval mode, and then each of its modules in the mode that it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def hooked(modules: Sequence[nn.Module], note: Callable[..., None]) -> Iterator[None]:
    """Have the forward passes of modules noted: `note(module, inputs, output)`."""
    handles = [module.register_forward_hook(note) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
