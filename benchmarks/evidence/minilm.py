"""Tokens by depth in MiniLM, a pretrained BERT of six layers, on sentences of known books."""

from pathlib import Path
from typing import Any

import torch
from attention_core import diagnose
from attention_core.diagnosis import TokenMeasures
from attention_nlp.models.checkpoints import quiet_transformers, resolve_weights
from transformers import AutoModel, AutoTokenizer

from benchmarks.evidence.settings import MiniLMSettings

SENTENCES = Path(__file__).with_name("sentences.txt")
# steps of a post-LN block, in the order of the equations
STEPS = {
    "attention": "attention's output",
    "residual": "+ residual",
    "norm": "LayerNorm",
    "mlp_residual": "MLP + residual",
    "mlp": "LayerNorm",
}


def list_units(settings: MiniLMSettings) -> list[dict[str, Any]]:
    """List the arguments of `measure_layers`: the pretrained weights, then random ones."""
    size = {"num_sentences": settings.num_sentences}
    return [{"seed": None, **size}, *({"seed": seed, **size} for seed in settings.seeds)]


def load_sentences(num_sentences: int) -> list[str]:
    """Load the first sentences of the file, without its comments."""
    lines = SENTENCES.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")][:num_sentences]


def measure_layers(seed: int | None, num_sentences: int) -> list[dict[str, Any]]:
    """Diagnose pretrained or random weights; one row for each step of each layer.

    `smoothing_share` is of the cases (heads, sentences) whose dominating eigenvalue smooths.
    """
    folder = resolve_weights("minilm")
    with quiet_transformers():
        model = AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
    if seed is not None:
        torch.manual_seed(seed)
        model = AutoModel.from_config(model.config, add_pooling_layer=False).eval()
    batch = tokenizer(load_sentences(num_sentences), padding=True, return_tensors="pt")
    layers = diagnose(model, batch).layers
    place = {"weights": "pretrained" if seed is None else "random", "seed": seed}
    first = layers[0].steps["input"]
    rows = [place | {"depth": 0, "step": "input"} | list_measures(first, None)]
    for depth, layer in enumerate(layers, start=1):
        share = (layer.eigenvalue_shares or {}).get("smoothing")
        rows += [
            place | {"depth": depth, "step": step} | list_measures(layer.steps[step], share)
            for step in STEPS
        ]
    return rows


def list_measures(tokens: TokenMeasures, smoothing_share: float | None) -> dict[str, float | None]:
    """Return the measures that are published."""
    return {
        "token_cosine": tokens.token_cosine,
        "hfc_lfc": tokens.hfc_lfc,
        "effective_rank": tokens.effective_rank,
        "smoothing_share": smoothing_share,
    }
