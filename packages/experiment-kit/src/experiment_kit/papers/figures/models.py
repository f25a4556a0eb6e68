"""Models that a figure is drawn from: diagnosed, and with the maps of one sample."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from attention_core import Plain, diagnose, spectral
from attention_core.operators import ValueFreeOutput
from torch import Tensor, nn

from experiment_kit.diagnosis.model_sources import load_run, load_source
from experiment_kit.diagnostics.hooks import eval_mode, forward_hooks, plain_filters
from experiment_kit.errors import UserError, shorten_text
from experiment_kit.run_files import read_result

SAMPLES = 8


@dataclass(frozen=True)
class LayerMaps:
    """The map A and the applied map H, of the heads (H, N, N) of a layer for one sample."""

    A: Tensor
    H: Tensor


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
        """Diagnose the network as it is now; UserError, in one sentence, where it cannot be."""
        try:
            return diagnose(self.network, self.batch, mask=self.mask).to_dict()
        except ValueError as error:
            raise UserError(f"{self.label}: {shorten_text(str(error), 280)}") from error

    @cached_property
    def maps(self) -> list[LayerMaps]:
        """The maps of every layer for the first sample, without its padding."""
        return collect_maps(self.network, self.batch, self.mask)

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


@torch.no_grad()
def collect_maps(network: nn.Module, batch: Any, mask: Tensor | None) -> list[LayerMaps]:
    """Return the maps of every layer for the first sample of a batch, in the order of the calls.

    The rows and columns of padding are left out.
    Raises UserError for a network whose attention is not known to `attach`.
    """
    found: list[LayerMaps] = []

    def keep_map(filter: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        constant = isinstance(inputs[0], ValueFreeOutput)
        if constant or inputs[1].shape[-2] != output.shape[-2]:
            return
        functions = (Plain(), filter.forward)
        maps = [spectral.matrix(function, inputs[0])[0].float() for function in functions]
        if mask is not None and mask.shape[-1] == maps[0].shape[-1]:
            maps = [M[..., mask[0], :][..., mask[0]] for M in maps]
        found.append(LayerMaps(*maps))

    with eval_mode(network), plain_filters(network):
        filters = [module for name, module in network.named_modules() if name.endswith(".filter")]
        if not filters:
            raise UserError(f"{type(network).__name__} has no attention that is known to attach")
        with forward_hooks(filters, keep_map):
            call_network(network, batch)
    return found


def call_network(network: Any, batch: Any) -> Any:
    """Call a network with a batch: a mapping by keyword, a tuple by position."""
    if isinstance(batch, Mapping):
        return network(**batch)
    return network(*batch) if isinstance(batch, tuple) else network(batch)
