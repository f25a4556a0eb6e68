"""Adapters for transformers: the config names our function in its AttentionInterface."""

from attention_core.hosts.hook_points import HostLibrary
from attention_core.hosts.transformers.adapter import (
    FilteredInterface,
    is_cross_attention,
    make_adapter,
)
from attention_core.hosts.transformers.positions import HOOK_POINTS
from attention_core.hosts.transformers.saving import load as load
from attention_core.hosts.transformers.saving import trust_own_code

HOST = HostLibrary(
    hook_points=HOOK_POINTS,
    find_adapter=make_adapter,
    is_cross_attention=is_cross_attention,
    update_config=trust_own_code,
    pads_tokens=True,
)
