"""Models that a figure is drawn from: diagnosed, and with the maps of one sample."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from attention_core import diagnose, spectral
from attention_core.diagnosis.batches import ModelInputs
from attention_core.diagnosis.diagnose import prepare_model
from attention_core.diagnosis.run import LayerMaps, collect_maps
from torch import Tensor

from experiment_kit.diagnosis.model_sources import load_run, load_source
from experiment_kit.errors import UserError, shorten_text
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

    @cached_property
    def diagnosis(self) -> Mapping[str, Any]:
        """The diagnosis of the network, as a dictionary."""
        return self.diagnose_network()

    def diagnose_network(self) -> Mapping[str, Any]:
        """Diagnose the network as it is now."""
        with self._name_errors():
            return diagnose(self.network, self.batch, mask=self.mask).to_dict()

    @cached_property
    def maps(self) -> list[LayerMaps]:
        """The maps (H, N, N) of every layer for the first sample, without its padding."""
        with self._name_errors(), prepare_model(self.network):
            found = collect_maps(self.network, ModelInputs(self.network, self.batch))
        return [LayerMaps(self._crop_map(x.A), self._crop_map(x.H), x.projected) for x in found]

    def _crop_map(self, M: Tensor) -> Tensor:
        first = M[0].float()
        if self.mask is None or self.mask.shape[-1] != first.shape[-1]:
            return first
        return first[..., self.mask[0], :][..., self.mask[0]]

    @contextmanager
    def _name_errors(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise UserError(f"{self.label}: {shorten_text(str(error), 280)}") from error

    def trace_measure(self, measure: str) -> list[float]:
        """Return a measure of the tokens that enter the first block, then after each block."""
        layers = self.diagnosis["layers"]
        outputs = [[*layer["steps"].values()][-1] for layer in layers if layer["steps"]]
        first = layers[0]["steps"].get("input")
        return [tokens[measure] for tokens in ([first] if first else []) + outputs]

    def average_singular_response(self) -> tuple[list[float], list[float]]:
        """Return singular values of the last layer's map, and its filter's gains, over heads."""
        sigma, gains = spectral.singular_response(self.maps[-1].A, self.maps[-1].H)
        return sigma.mean(0).tolist(), gains.mean(0).tolist()

    def average_response(self) -> list[float]:
        """Return the mean response of the heads of the last layer."""
        heads = torch.tensor(self.diagnosis["layers"][-1]["responses"], dtype=torch.float64)
        return heads.mean(0).tolist()


def load_run_model(label: str, folder: Path) -> DrawnModel:
    """Load the best epoch of a run, with a batch of its validation data.

    Raises UserError for a run without a checkpoint.
    """
    network, batch, mask, _ = load_run(str(folder), [], SAMPLES)
    return DrawnModel(label, network, batch, mask, (read_result(folder) or {}).get("method", ""))


def load_model(name: str, backbone: str) -> DrawnModel:
    """Load a model by its name, as timm:NAME, hf:FOLDER, checkpoint:FILE or run:FOLDER.

    It gets samples that are made, or those of the run. Raises UserError for another name.
    """
    kind, _, rest = name.partition(":")
    if kind == "run" and rest:
        return load_run_model(rest, Path(rest))
    source = load_source(name, backbone=backbone)
    batch, _ = source.make_batch([], SAMPLES)
    mask = _find_mask(batch)
    return DrawnModel(Path(rest).name, source.network, batch, mask, weights=source.weights)


def _find_mask(batch: Any) -> Tensor | None:
    found = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    return None if found is None else found.bool()


def call_network(network: Any, batch: Any) -> Any:
    """Call a network with a batch: a mapping by keyword, a tuple by position."""
    if isinstance(batch, Mapping):
        return network(**batch)
    return network(*batch) if isinstance(batch, tuple) else network(batch)
