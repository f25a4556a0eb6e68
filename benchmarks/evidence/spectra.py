"""Tokens by depth in a vision transformer whose eigenvalues of W_V W_O are chosen."""

from dataclasses import asdict
from functools import partial
from typing import Any

import timm
import torch
from attention_core import EigenSpectrum, attach, diagnose

from benchmarks.evidence.settings import SpectrumSettings

KINDS = ("sharpening", "smoothing", "band-pass")
# the start of V and the deviation of psi: the paper's, the default, and eigenvalues at full range
STARTS = {
    "V of He, psi 0.1": {"init": "he", "std": 0.1},
    "V orthogonal, psi 0.1": {"init": "orthogonal", "std": 0.1},
    "V orthogonal, psi 1": {"init": "orthogonal", "std": 1.0},
}


def list_units(settings: SpectrumSettings) -> list[dict[str, Any]]:
    """List the arguments of `measure_spectrum`: the plain model, then each kind and start."""
    sizes = {key: value for key, value in asdict(settings).items() if key != "seeds"}
    pairs = [("plain", ""), *((kind, start) for start in STARTS for kind in KINDS)]
    return [
        {"kind": kind, "start": start, "seed": seed, **sizes}
        for kind, start in pairs
        for seed in settings.seeds
    ]


def measure_spectrum(
    kind: str, start: str, seed: int, model: str, num_layers: int, num_samples: int
) -> list[dict[str, Any]]:
    """Diagnose random weights on noise images; one row for each depth of the residual stream."""
    torch.manual_seed(seed)
    network = timm.create_model(model, img_size=32, patch_size=4, depth=num_layers)
    images = torch.randn(num_samples, 3, 32, 32)
    if start:
        attach(network, reparam=partial(EigenSpectrum, kind=kind, **STARTS[start]))
    report = diagnose(network, images, measures="light")
    curves = zip(report.curve("hfc_lfc"), report.curve("token_cosine"), strict=True)
    return [
        {"kind": kind, "start": start, "seed": seed, "depth": depth, "hfc_lfc": hfc_lfc,
         "token_cosine": cosine}
        for depth, (hfc_lfc, cosine) in enumerate(curves)
    ]  # fmt: skip
