"""Tokens by depth in MiniLM, a pretrained BERT of six layers, on sentences of known books."""

from pathlib import Path
from typing import Any

import torch
from attention_nlp.models.checkpoints import quiet_transformers, resolve_weights
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from benchmarks.evidence.settings import MiniLMSettings
from benchmarks.evidence.stacks import measure_tokens

SENTENCES = Path(__file__).with_name("sentences.txt")
# what the steps of a BERT layer are called: their outputs are tokens
STEPS = {
    "attention": "attention.output.dense",
    "residual": "attention.output",
    "mlp": "output",
}


def list_units(settings: MiniLMSettings) -> list[dict[str, Any]]:
    """List the arguments of `measure_layers`: the pretrained weights, then random ones."""
    size = {"num_sentences": settings.num_sentences}
    return [{"seed": None, **size}, *({"seed": seed, **size} for seed in settings.seeds)]


def load_sentences(num_sentences: int) -> list[str]:
    """Load the first sentences of the file, without its comments."""
    lines = SENTENCES.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")][:num_sentences]


@torch.no_grad()
def measure_layers(seed: int | None, num_sentences: int) -> list[dict[str, Any]]:
    """Measure the tokens behind each step of each layer, of pretrained or of random weights."""
    folder = resolve_weights("minilm")
    with quiet_transformers():
        model = AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
    if seed is not None:
        torch.manual_seed(seed)
        model = AutoModel.from_config(model.config, add_pooling_layer=False).eval()
    batch = tokenizer(load_sentences(num_sentences), padding=True, return_tensors="pt")
    mask = batch["attention_mask"].bool()
    name = "pretrained" if seed is None else "random"
    rows: list[dict[str, Any]] = []

    def record(depth: int, step: str, x: Tensor) -> None:
        place = {"weights": name, "seed": seed, "depth": depth, "step": step}
        rows.append(place | measure_tokens(x.double(), mask))

    handles = [add_hook(model.embeddings, record, 0, "input")]
    for depth, layer in enumerate(model.encoder.layer, start=1):
        for step, path in STEPS.items():
            handles.append(add_hook(layer.get_submodule(path), record, depth, step))
    model(**batch)
    for handle in handles:
        handle.remove()
    return rows


def add_hook(module: nn.Module, record: Any, depth: int, step: str) -> Any:
    """Let `record` see each output of a module."""
    return module.register_forward_hook(lambda module, inputs, x: record(depth, step, x))
