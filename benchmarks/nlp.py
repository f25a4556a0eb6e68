"""BERT and GPT-2 of transformers with GFSA, whole models: step time, memory, cached generation.

A CPU is given two of the twelve layers at their full width, and the vocabulary in proportion, so
that attention's share of the work is that of the whole model.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from attention_core import GFSA, attach
from experiment_kit.memory import allocated
from measure import Step, clock, interleave, judge, noise, timed
from rich.table import Table
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

MEMORY = 1.15
GENERATION = 0.75
LAYERS = 12


class Case(NamedTuple):
    """A model at a length, texts a step, and the aims of GFSA in all layers and in half of them."""

    model: str
    length: int
    batch: int
    most: float | None = None
    most_even: float | None = None


CASES = {
    "cpu": [Case("BERT", 128, 8, 1.08), Case("BERT", 512, 2), Case("GPT-2", 1024, 1, 1.25, 1.13)],
    "cuda": [Case("BERT", 128, 32, 1.08), Case("BERT", 512, 8), Case("GPT-2", 1024, 4, 1.25, 1.13)],
}


class Literal(GFSA):
    """GFSA as published code computes it: (N, N) maps, A^2 among them."""

    def forward(self, A: Any, v: Tensor) -> Tensor:
        """https://github.com/jeongwhanchoi/GFSA, which also lays out the identity."""
        w1, wK = self.w1.to(v.dtype).view(-1, 1, 1), self.wK.to(v.dtype).view(-1, 1, 1)
        dropout = A.dropout
        A = nn.functional.dropout(A.dense(), dropout)
        return (w1 * A + wK * (A + (self.K - 1) * (A @ A - A))) @ v


METHODS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda model: model,
    "GFSA": lambda model: attach(model, GFSA),
    "GFSA, even layers": lambda model: attach(model, GFSA, "1::2"),
    "GFSA, published": lambda model: attach(model, Literal),
}


def build(method: str, name: str, dropout: float, sizes: dict[str, int]) -> nn.Module:
    """A model whose wK is not 0, with all dropout at one rate."""
    torch.manual_seed(0)
    depth, width, heads = sizes["depth"], sizes["width"], sizes["heads"]
    if name == "BERT":
        model: nn.Module = BertForSequenceClassification(
            BertConfig(
                vocab_size=30522 * depth // LAYERS,
                hidden_size=width,
                num_hidden_layers=depth,
                num_attention_heads=heads,
                intermediate_size=4 * width,
                hidden_dropout_prob=dropout,
                attention_probs_dropout_prob=dropout,
            )
        )
    else:
        rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
        vocabulary = {"vocab_size": 50257 * depth // LAYERS, "bos_token_id": 0, "eos_token_id": 0}
        model = GPT2LMHeadModel(
            GPT2Config(n_embd=width, n_layer=depth, n_head=heads, **rates, **vocabulary)
        )
    model = METHODS[method](model)
    for filter in (m for m in model.modules() if isinstance(m, GFSA)):
        nn.init.constant_(filter.wK, 0.1)
    return model


def training(
    method: str, case: Case, length: int, dropout: float, device: str, sizes: dict[str, int]
) -> Step:
    """Forward, backward and a step of AdamW; bfloat16 on a GPU."""
    model = build(method, case.model, dropout, sizes).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(1, 30522 * sizes["depth"] // LAYERS, (case.batch, length), device=device)
    labels = ids if case.model == "GPT-2" else ids[:, 0] % 2

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def speed(case: Case, length: int, device: str, sizes: dict[str, int], seconds: float) -> Table:
    """A training step of each method beside the plain one's, with published dropout and without."""
    watch, aims = clock(device), {"GFSA": case.most, "GFSA, even layers": case.most_even}
    said = [f"{name} <= {most}" for name, most in aims.items() if most]
    table = Table(
        *("method", "dropout", "step, ms", "step / plain", "peak MiB", "peak / plain", "noise"),
        title=f"{case.model} at {length}, batch {case.batch}, {sizes['depth']} layers; aims: "
        + ", ".join([*said, f"peak <= {MEMORY}"]),
    )
    for dropout in (0.1, 0.0):
        steps = {name: training(name, case, length, dropout, device, sizes) for name in METHODS}
        taken = interleave({n: timed(step, watch) for n, step in steps.items()}, seconds, 3)
        peaks = {name: allocated(step, device) for name, step in steps.items()}
        for name in METHODS:
            aimed = name in ("GFSA", "GFSA, even layers")
            table.add_row(
                *(name, f"{dropout}", f"{1e3 * taken[name].best:.0f}"),
                judge(taken[name].best / taken["plain"].best, aims.get(name)),
                f"{peaks[name]:.0f}",
                judge(peaks[name] / peaks["plain"], MEMORY if aimed else None),
                noise({name: taken[name]}),
            )
    return table


def generation(device: str, sizes: dict[str, int], tokens: int, seconds: float) -> Table:
    """Greedy decoding by GPT-2 with its cache, which holds A v beside the values for GFSA."""
    watch = clock(device)
    options = {"do_sample": False, "pad_token_id": 0, "min_new_tokens": tokens}
    runs = {}
    for name in ("plain", "GFSA", "GFSA, even layers"):
        model: Any = build(name, "GPT-2", 0.0, sizes).to(device).eval()
        ids = torch.randint(1, 99, (1, max(1, tokens // 2)), device=device)
        step = partial(model.generate, ids, max_new_tokens=tokens, **options)
        runs[name] = timed(step, watch)
    taken = interleave(runs, seconds, 3)
    table = Table(
        *("method", "tokens/s", "tokens/s over plain's", "noise"),
        title=f"Generation of {tokens} tokens with the cache; aim for GFSA >= {GENERATION}",
    )
    for name in runs:
        table.add_row(
            name,
            f"{tokens / taken[name].best:.0f}",
            judge(
                taken["plain"].best / taken[name].best,
                least=None if name == "plain" else GENERATION,
            ),
            noise({name: taken[name]}),
        )
    return table


def tables(device: str, quick: bool) -> list[Table]:
    """One table a case, and one of generation; quick runs narrow models on short texts."""
    logging.set_verbosity_error()
    sizes = {"depth": 2 if device == "cpu" else LAYERS, "width": 768, "heads": 12}
    seconds, shorten, tokens = 30.0, 1, 128
    if quick:
        sizes, seconds, shorten, tokens = {"depth": 2, "width": 24, "heads": 3}, 0.2, 16, 5
    trained = [
        speed(case, case.length // shorten, device, sizes, seconds) for case in CASES[device]
    ]
    return [*trained, generation(device, sizes, tokens, seconds)]
