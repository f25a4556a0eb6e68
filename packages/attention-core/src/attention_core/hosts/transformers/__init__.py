"""Adapters for transformers: the config names our function in its AttentionInterface."""

from attention_core.hosts.hook_points import HostLibrary
from attention_core.hosts.transformers.adapter import (
    FilteredInterface,
    is_cross_attention,
    make_adapter,
)
from attention_core.hosts.transformers.positions import HOOK_POINTS
from attention_core.hosts.transformers.saving import load as load

HOST = HostLibrary(
    hook_points=HOOK_POINTS,
    find_adapter=make_adapter,
    is_cross_attention=is_cross_attention,
    pads_tokens=True,
)
