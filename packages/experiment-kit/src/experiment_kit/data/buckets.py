"""Old names of `experiment_kit.data.loaders`."""  # shim: issue 16, deleted at the end

from experiment_kit.data.loaders import bucketed_loader, sorted_loader

__all__ = ["bucketed_loader", "sorted_loader"]
