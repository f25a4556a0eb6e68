"""Measure BERT and GPT-2 of transformers with GFSA: step time, memory, cached generation.

On a CPU, a model has two of its twelve layers, at full width, and a sixth of its vocabulary, so
that attention has the same share of the work as in the whole model.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from measure import Step, compare_with_aim, format_noise, measure_steps
from published import PublishedGFSA
from rich.table import Table
from torch import nn
from train_steps import build_gfsa_methods, build_train_step, compare_steps, set_wK
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

MAX_PEAK = 1.15  # GFSA over plain
MIN_GENERATION_SPEED = 0.75  # GFSA over plain
NUM_LAYERS = 12


class Case(NamedTuple):
    """A model, the size of its batches, and the largest step time of GFSA over plain.

    `max_even` is the aim for GFSA in every second layer.
    """

    model: str
    length: int
    batch_size: int
    max_all: float | None = None
    max_even: float | None = None


CASES = {
    "cpu": [Case("BERT", 128, 8, 1.08), Case("BERT", 512, 2), Case("GPT-2", 1024, 1, 1.25, 1.13)],
    "cuda": [Case("BERT", 128, 32, 1.08), Case("BERT", 512, 8), Case("GPT-2", 1024, 4, 1.25, 1.13)],
}
METHODS = build_gfsa_methods(PublishedGFSA)


def build_model(method: str, name: str, dropout: float, sizes: dict[str, int]) -> nn.Module:
    """Build a model whose wK is not 0, with one rate for all dropout."""
    torch.manual_seed(0)
    num_layers, dim, num_heads = sizes["num_layers"], sizes["dim"], sizes["num_heads"]
    if name == "BERT":
        model: nn.Module = BertForSequenceClassification(
            BertConfig(
                vocab_size=30522 * num_layers // NUM_LAYERS,
                hidden_size=dim,
                num_hidden_layers=num_layers,
                num_attention_heads=num_heads,
                intermediate_size=4 * dim,
                hidden_dropout_prob=dropout,
                attention_probs_dropout_prob=dropout,
            )
        )
    else:
        config = GPT2Config(
            vocab_size=50257 * num_layers // NUM_LAYERS,
            n_embd=dim,
            n_layer=num_layers,
            n_head=num_heads,
            bos_token_id=0,
            eos_token_id=0,
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout),
        )
        model = GPT2LMHeadModel(config)
    model = METHODS[method](model)
    set_wK(model)
    return model


def build_case_step(
    method: str, case: Case, length: int, dropout: float, device: str, sizes: dict[str, int]
) -> Step:
    """Build one training step with AdamW on random tokens."""
    model = build_model(method, case.model, dropout, sizes).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(
        1, 30522 * sizes["num_layers"] // NUM_LAYERS, (case.batch_size, length), device=device
    )
    labels = ids if case.model == "GPT-2" else ids[:, 0] % 2
    return build_train_step(lambda: model(input_ids=ids, labels=labels).loss, optimizer, device)


def measure_training(
    case: Case, length: int, device: str, sizes: dict[str, int], seconds: float
) -> Table:
    """Compare a training step of each method with plain's, with published dropout and without."""
    aims = {"GFSA": case.max_all, "GFSA, even layers": case.max_even}
    listed_aims = [f"{name} <= {aim}" for name, aim in aims.items() if aim]
    table = Table(
        *("method", "dropout", "step, ms", "step / plain", "peak MiB", "peak / plain", "noise"),
        title=f"{case.model} at {length}, batch {case.batch_size}, {sizes['num_layers']} layers; "
        f"aims: {', '.join([*listed_aims, f'peak <= {MAX_PEAK}'])}",
    )
    max_peak = dict.fromkeys(aims, MAX_PEAK)
    for dropout in (0.1, 0.0):
        steps = {
            name: build_case_step(name, case, length, dropout, device, sizes) for name in METHODS
        }
        for name, *cells in compare_steps(steps, device, seconds, aims, max_peak):
            table.add_row(name, f"{dropout}", *cells)
    return table


def measure_generation(device: str, sizes: dict[str, int], tokens: int, seconds: float) -> Table:
    """Measure greedy decoding by GPT-2 with its cache, which also holds A v for GFSA."""
    options = {"do_sample": False, "pad_token_id": 0, "min_new_tokens": tokens}
    steps = {}
    for name in ("plain", "GFSA", "GFSA, even layers"):
        model: Any = build_model(name, "GPT-2", 0.0, sizes).to(device).eval()
        ids = torch.randint(1, 99, (1, max(1, tokens // 2)), device=device)
        steps[name] = partial(model.generate, ids, max_new_tokens=tokens, **options)
    timings = measure_steps(steps, device, seconds, min_rounds=3)
    table = Table(
        *("method", "tokens/s", "tokens/s over plain's", "noise"),
        title=f"Generation of {tokens} tokens with the cache; aim >= {MIN_GENERATION_SPEED}",
    )
    for name, timing in timings.items():
        least = None if name == "plain" else MIN_GENERATION_SPEED
        table.add_row(
            *(name, f"{tokens / timing.best:.0f}"),
            compare_with_aim(timings["plain"].best / timing.best, least=least),
            format_noise({name: timing}),
        )
    return table


def build_tables(device: str, quick: bool) -> list[Table]:
    """Return a table for each case and one of generation; `quick` uses small models and texts."""
    logging.set_verbosity_error()
    sizes = {"num_layers": 2 if device == "cpu" else NUM_LAYERS, "dim": 768, "num_heads": 12}
    seconds, shorten, tokens = 30.0, 1, 128
    if quick:
        sizes, seconds, shorten, tokens = {"num_layers": 2, "dim": 24, "num_heads": 3}, 0.2, 16, 5
    tables = [
        measure_training(case, case.length // shorten, device, sizes, seconds)
        for case in CASES[device]
    ]
    return [*tables, measure_generation(device, sizes, tokens, seconds)]
