"""Models that a figure is drawn from: diagnosed, and with the maps of one sample."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attention_core import diagnose
from attention_core.diagnosis import Diagnosis
from attention_core.diagnosis.batches import ModelInputs
from attention_core.diagnosis.diagnose import prepare_model
from attention_core.diagnosis.run import LayerMaps, collect_maps
from rich.progress import track
from torch import Tensor

from experiment_kit.diagnosis.model_sources import load_run, load_source
from experiment_kit.errors import convert_user_errors
from experiment_kit.run_files import read_result

SAMPLES = 8


@dataclass
class DrawnModel:
    """A network in evaluation mode, a batch of it, and the mask that the batch does not hold.

    `method` is that of its run, if it is of one; `weights` says where others are from.
    """

    label: str
    network: Any
    batch: Any
    mask: Tensor | None = None
    method: str = ""
    weights: str = ""
    folder: Path | None = None  # where its run is
    trust: Sequence[str] | str = ()  # classes that its config may name

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis of the network; UserError, in one sentence, where it has none."""
        with convert_user_errors(ValueError, prefix=f"{self.label}: "):
            return diagnose(self.network, self.batch, mask=self.mask, mechanisms=[])

    def average_batches(self, measure: str) -> list[float]:
        """Return a measure of tokens by depth, as the mean over all validation data of a run."""
        if self.folder is None:
            return self.diagnosis.curve(measure)
        network, batches, _ = load_run(str(self.folder), [], None, self.trust)
        reports = [
            diagnose(network, batch, mask=mask, measures="light")
            for batch, mask in track(batches, self.label, transient=True)
        ]
        curves, counts = zip(*((r.curve(measure), r.num_samples) for r in reports), strict=True)
        return np.average(curves, axis=0, weights=counts).tolist()

    @cached_property
    def maps(self) -> list[LayerMaps]:
        """The maps (H, N, N) of every layer for the first sample, without its padding."""
        inputs = ModelInputs(self.network, self.batch)
        with convert_user_errors(ValueError, prefix=f"{self.label}: "), prepare_model(self.network):
            found = collect_maps(self.network, inputs)

        def crop(M: Tensor) -> Tensor:
            shape = len(M), M.shape[-1]
            mask = inputs.find_mask(False, shape) if self.mask is None else self.mask
            is_fit = mask is not None and mask.shape == shape
            valid = mask[0] if mask is not None and is_fit else slice(None)
            return M[0].float()[..., valid, :][..., valid]

        return [LayerMaps(crop(layer.A), crop(layer.H), layer.projected) for layer in found]

    def average_response(self) -> list[float]:
        """Return the mean response of the heads of the last layer."""
        heads = torch.tensor(self.diagnosis.layers[-1].responses, dtype=torch.float64)
        return heads.mean(0).tolist()


def load_run_model(label: str, folder: Path, trust: Sequence[str] | str = ()) -> DrawnModel:
    """Load the best epoch of a run, with a batch of its validation data."""
    network, batches, _ = load_run(str(folder), [], SAMPLES, trust)
    method = (read_result(folder) or {}).get("method", "")
    return DrawnModel(label, network, *next(batches), method, folder=folder, trust=trust)


def load_model(name: str, backbone: str, trust: Sequence[str] | str = ()) -> DrawnModel:
    """Load a model by its name, as timm:NAME, with samples that are made, or those of its run."""
    kind, _, rest = name.partition(":")
    if kind == "run" and rest:
        return load_run_model(rest, Path(rest), trust)
    source = load_source(name, None, backbone)
    batch, _ = source.make_batch([], SAMPLES)
    return DrawnModel(Path(rest).name, source.network, batch, weights=source.weights)
