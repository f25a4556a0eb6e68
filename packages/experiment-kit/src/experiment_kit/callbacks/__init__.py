"""Old names of `experiment_kit.training` callbacks."""  # shim: issue 16, deleted at the end

from experiment_kit.diagnostics.monitor import SpectralMonitor
from experiment_kit.training.callbacks import EpochTimer as Times
from experiment_kit.training.callbacks import FiniteLoss, StepSeed
from experiment_kit.training.lightning_patches import PreemptionHandler as GracefulStop
from experiment_kit.training.lightning_patches import ResumableEarlyStopping as Patience
from experiment_kit.training.lightning_patches import UnfuseForClipping as Clippable

__all__ = [
    "Clippable", "FiniteLoss", "GracefulStop", "Patience", "SpectralMonitor", "StepSeed", "Times",
]  # fmt: skip
