"""Files from the network, safely; training batches in an order that survives a resume."""

from experiment_kit.data.archive import extract
from experiment_kit.data.download import fetch
from experiment_kit.data.loader import EpochSampler, epoch_loader

__all__ = ["EpochSampler", "epoch_loader", "extract", "fetch"]
