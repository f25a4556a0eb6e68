"""Watch a forward pass of a model by hooks, and restore the model afterwards."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from attention_core import Plain, SelfAttention, attach, detach
from attention_core.hosts.adapter import Filtered
from attention_core.hosts.selection import self_attention_modules
from torch import nn
from torch.distributed.fsdp import FSDPModule


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Set eval mode, and restore the mode of each module."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def forward_hooks(modules: Sequence[nn.Module], hook: Callable[..., None]) -> Iterator[None]:
    """Call `hook(module, inputs, output)` after each forward pass of the modules."""
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def gather_weights(model: nn.Module) -> Iterator[None]:
    """Gather sharded weights on every device."""
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in sharded:
        module.unshard()
    try:
        yield
    finally:
        for module in sharded:
            module.reshard()


def find_attention(model: nn.Module) -> list[nn.Module]:
    """Return the self-attention modules of a model in its order, with and without a filter.

    Raises ValueError that names what the model has if it has none.
    """
    own = [module for module in model.modules() if isinstance(module, SelfAttention)]
    try:
        known = [module for module, _ in self_attention_modules(model)]
    except ValueError:
        if not own:
            raise
        known = []
    found = {*own, *known}
    return [module for module in model.modules() if module in found]


def find_networks(model: nn.Module) -> list[nn.Module]:
    """Return the modules that hold all attention of a model and can be called, the model first."""
    attention = set(find_attention(model))
    holders = [module for module in model.modules() if attention <= set(module.modules())]
    # a ModuleList has no forward
    return [module for module in holders if type(module).forward is not nn.Module.forward]


@contextmanager
def plain_filters(model: nn.Module) -> Iterator[None]:
    """Attach Plain, which changes nothing, to attention without a filter: hooks see its maps.

    Wrapped models, such as sharded ones, cannot be changed: there, only the maps of filters are
    seen.
    """
    try:
        known = [module for module, _ in self_attention_modules(model)]
    except ValueError:
        known = []
    bare = {i: module for i, module in enumerate(known) if not isinstance(module, Filtered)}
    logger = logging.getLogger("attention_core.hosts.attach")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about attention that no filter supports
            try:
                if bare:
                    attach(model, Plain, list(bare))
            except ValueError:  # a wrapped model
                bare = {}
        yield
    finally:
        for module in bare.values():
            detach(module)
        logger.disabled = was_disabled
