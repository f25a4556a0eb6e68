"""The learned coefficients of a model's mechanisms, and the conditioning of its projections."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from attention_core import spectral
from attention_core.diagnosis import Projections
from attention_core.reparam import EigenSpectrum, find_spectrum
from torch import nn
from torch.optim.swa_utils import AveragedModel

Coefficients = dict[str, list[float]]


def attention_projections(model: Any) -> Iterator[tuple[nn.Module, Projections]]:
    """Yield the filter and projections of each attention with a filter, qkv and proj."""
    for part in model.modules():
        if all(hasattr(part, name) for name in ("qkv", "proj", "filter")):
            value = part.qkv.weight.chunk(3)[2]
            yield part.filter, Projections(value, part.proj.weight, part.num_heads)


def collect_coefficients(model: nn.Module) -> Coefficients:
    """Return the coefficients of every filter, kernel, token mechanism and spectrum, by name.

    A kernel's are those that it applies (AGF's), and not the parameters behind them; a spectrum's
    are its eigenvalues, `<attention>.spectrum.psi`.
    """
    found: Coefficients = {}
    for name, module in _list_named_modules(model):
        if name.endswith(".kernel") and hasattr(module, "coefficients"):
            found[f"{name}.theta"] = module.coefficients().tolist()
        elif name.endswith((".filter", ".tokens")):
            own = {key: w for key, w in module.named_parameters() if w.ndim == 1}
            found |= {f"{name}.{key}": w.detach().tolist() for key, w in own.items()}
        elif (spectrum := find_spectrum(module)) is not None:
            owner = name.rpartition(".")[0] or name
            found[f"{owner}.spectrum.psi"] = spectrum.eigenvalues().detach().tolist()
    return {name: values for name, values in found.items() if values}


def list_frozen_coefficients(model: nn.Module) -> list[str]:
    """Return the names of the coefficients that training does not change."""
    frozen = []
    for name, module in _list_named_modules(model):
        if name.endswith(".kernel") and hasattr(module, "coefficients"):
            if not any(w.requires_grad for w in module.parameters()):
                frozen.append(f"{name}.theta")
        elif name.endswith((".filter", ".tokens")):
            own = module.named_parameters()
            frozen += [f"{name}.{key}" for key, w in own if w.ndim == 1 and not w.requires_grad]
    return frozen


def list_trained(measures: Mapping[str, Any]) -> Iterator[tuple[str, int, list[float]]]:
    """Yield the name, layer and values of each trained coefficient of a measurement.

    The layer is the index of its attention; coefficients that belong to none, such as those of
    norms, are counted.
    """
    places = {name: i for i, name in enumerate(measures["attention"])}
    counts: dict[str, int] = defaultdict(int)
    for name, values in measures["coefficients"].items():
        if name not in measures["frozen"]:
            owner, _, coefficient = ["", "", *name.rsplit(".", 2)][-3:]
            yield coefficient, places.get(owner, counts[coefficient]), values
            counts[coefficient] += 1


@torch.no_grad()
def measure_condition_numbers(model: nn.Module) -> list[float]:
    """Return the condition number of W_V W_O (d, d) of each attention with qkv and proj.

    Source: figure 7 of https://arxiv.org/abs/2401.04301v2
    """
    # in float64, as in a diagnosis: float32 does not tell 768 channels from a singular product
    products = (
        part.output.double() @ part.value.double() for _, part in attention_projections(model)
    )
    return [spectral.condition_number(product).item() for product in products]


def _list_named_modules(model: nn.Module) -> Iterator[tuple[str, Any]]:
    averages = [m for m in model.modules() if isinstance(m, AveragedModel)]
    copies = {part for average in averages for part in average.modules()}
    for name, module in model.named_modules():
        if module not in copies and not isinstance(module, EigenSpectrum):
            yield name, module
