"""Old names of `experiment_kit.data.splits`."""  # shim: issue 16, deleted at the end

from experiment_kit.data.splits import split_stratified as stratified

__all__ = ["stratified"]
