"""Old names of `experiment_kit.data.loaders`."""  # shim: issue 16, deleted at the end

from experiment_kit.data.loaders import build_train_loader as epoch_loader
from experiment_kit.data.loaders import is_overfitting as overfits

__all__ = ["epoch_loader", "overfits"]
