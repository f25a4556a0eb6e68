"""What every run carries: exact randomness, a graceful end, guards and instruments."""

from experiment_kit.callbacks.clipping import Clippable
from experiment_kit.callbacks.finite import FiniteLoss
from experiment_kit.callbacks.grace import GracefulStop
from experiment_kit.callbacks.movable import MovableCheckpoint
from experiment_kit.callbacks.patience import Patience
from experiment_kit.callbacks.position import Reposition
from experiment_kit.callbacks.seed import StepSeed
from experiment_kit.callbacks.spectral import SpectralMonitor
from experiment_kit.callbacks.throughput import Throughput
from experiment_kit.callbacks.times import Times

__all__ = [
    "Clippable",
    "FiniteLoss",
    "GracefulStop",
    "MovableCheckpoint",
    "Patience",
    "Reposition",
    "SpectralMonitor",
    "StepSeed",
    "Throughput",
    "Times",
]
