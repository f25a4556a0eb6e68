"""Adapters for transformers, https://github.com/huggingface/transformers

Every attention class that calls the function named by its config is filtered in one way: its
config names ours, which makes the map an operator and hands it to the filter.
"""

from attention_core.hosts.transformers.adapter import FilteredInterface, adapter
from attention_core.hosts.transformers.saving import load

__all__ = ["FilteredInterface", "adapter", "load"]
