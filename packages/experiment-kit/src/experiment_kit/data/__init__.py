"""Files from the network, safely; training batches in an order that survives a resume."""

from experiment_kit.data.archive import extract
from experiment_kit.data.download import fetch
from experiment_kit.data.loader import epoch_loader
from experiment_kit.data.sampler import EpochSampler

__all__ = ["EpochSampler", "epoch_loader", "extract", "fetch"]
