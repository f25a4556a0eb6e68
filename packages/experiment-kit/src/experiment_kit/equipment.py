"""Old names of `experiment_kit.training.callbacks`."""  # shim: issue 16, deleted at the end

from experiment_kit.training.callbacks import build_logger as logger
from experiment_kit.training.callbacks import default_callbacks as equipment

__all__ = ["equipment", "logger"]
