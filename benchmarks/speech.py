"""Speech encoders with GFSA: time of a training step by length, and of decoding.

On a CPU the networks have two encoder layers instead of twelve and eighteen, at full width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from attention_core import GFSA, Softmax, attach
from attention_speech.decoding import BeamSearchConfig, beam_search
from attention_speech.models import Recognizer, RecognizerConfig
from experiment_kit.diagnostics.efficiency import peak_allocated_mib
from measure import Step, clock, interleave, judge, noise, timed
from rich.table import Table
from torch import Tensor, nn

MAX_RATIO = 1.10  # of a training step with GFSA to plain
NUM_MELS, NUM_TOKENS = 80, 5000
FRAMES = 100  # a second


class Case(NamedTuple):
    """An encoder, and the batch of a step: utterances of so many seconds."""

    name: str
    config: RecognizerConfig
    seconds: int
    batch: int


def list_cases(device: str) -> list[Case]:
    """Return the paper's two networks, each for 10 and for 30 seconds."""
    on_cpu = device == "cpu"
    transformer = RecognizerConfig(num_encoder_layers=2 if on_cpu else 12, num_decoder_layers=1)
    branchformer = RecognizerConfig(
        "branchformer",
        num_heads=8,
        num_encoder_layers=2 if on_cpu else 18,
        num_decoder_layers=1,
        channels=(64, 32),
        kernels=(3, 3),
        strides=(2, 2),
        residuals=(False, False),
    )
    networks = {"Transformer": transformer, "Branchformer": branchformer}
    lengths = ((10, 3), (30, 1)) if on_cpu else ((10, 48), (30, 16))
    return [Case(name, size, *length) for name, size in networks.items() for length in lengths]


class PublishedGFSA(GFSA):
    """GFSA as published code computes it, by A^2: https://github.com/jeongwhanchoi/GFSA"""

    def forward(self, A: Any, v: Tensor) -> Tensor:
        wK = self.wK.to(v.dtype).view(-1, 1, 1)
        # with relative positions, A has had its dropout already
        A = F.dropout(A.dense(), A.dropout) if isinstance(A, Softmax) else A @ A.eye()
        return (A + wK * (A + (self.K - 1) * (A @ A - A))) @ v


METHODS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda encoder: encoder,
    "GFSA": lambda encoder: attach(encoder, GFSA),
    "GFSA, even layers": lambda encoder: attach(encoder, GFSA, "1::2"),
    "GFSA, published": lambda encoder: attach(encoder, PublishedGFSA),
}


def build_network(method: str, config: RecognizerConfig, device: str) -> Recognizer:
    """Return a recognizer whose wK is not 0."""
    torch.manual_seed(0)
    model = Recognizer(config, NUM_MELS, NUM_TOKENS)
    METHODS[method](model.transformer.encoder)
    for filter in (m for m in model.modules() if isinstance(m, GFSA)):
        nn.init.constant_(filter.wK, 0.1)
    return model.to(device)


def build_training_step(method: str, case: Case, device: str) -> Step:
    """Return a step of AdamW on front end and encoder; bfloat16 on a GPU."""
    model = build_network(method, case.config, device).train()
    parts = [*model.front_end.parameters(), *model.transformer.encoder.parameters()]
    optimizer = torch.optim.AdamW(parts, lr=1e-4, fused=True)
    frames = FRAMES * case.seconds
    x = torch.randn(case.batch, frames, NUM_MELS, device=device)
    lengths = torch.full((case.batch,), frames, device=device)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            states, _ = model.encode(x, lengths)
            loss = states.float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure_training(case: Case, device: str, seconds: float) -> Table:
    """Compare a training step of each method with the plain one, with dropout."""
    watch = clock(device)
    steps = {name: build_training_step(name, case, device) for name in METHODS}
    taken = interleave({n: timed(step, watch) for n, step in steps.items()}, seconds, 3)
    peaks = {name: peak_allocated_mib(step, device) for name, step in steps.items()}
    table = Table(
        *("method", "step, ms", "step / plain", "peak MiB", "peak / plain", "noise"),
        title=f"{case.name}, {case.batch} x {case.seconds} s, "
        f"{case.config.num_encoder_layers} layers, dropout {case.config.dropout}; "
        f"aim: GFSA <= {MAX_RATIO}",
    )
    for name in METHODS:
        table.add_row(
            *(name, f"{1e3 * taken[name].best:.0f}"),
            judge(taken[name].best / taken["plain"].best, MAX_RATIO if name == "GFSA" else None),
            f"{peaks[name]:.0f}",
            judge(peaks[name] / peaks["plain"]),
            noise({name: taken[name]}),
        )
    return table


def measure_decoding(case: Case, device: str, beam: int, states: int, seconds: float) -> Table:
    """Time the beam search; random weights never end a text, so it reaches the longest one."""
    watch, search = (
        clock(device),
        BeamSearchConfig(beam_size=beam, max_decode_ratio=states / (25 * case.seconds)),
    )
    x = torch.randn(case.batch, FRAMES * case.seconds, NUM_MELS, device=device)
    lengths = torch.full((case.batch,), FRAMES * case.seconds, device=device)
    runs = {}
    for name in ("plain", "GFSA"):
        model = build_network(name, case.config, device).eval()

        @torch.no_grad()
        def decode_batch(model: Recognizer = model) -> None:
            beam_search(model, *model.encode(x, lengths), search)

        runs[name] = timed(decode_batch, watch)
    taken, audio = interleave(runs, seconds), case.batch * case.seconds
    table = Table(
        *("method", "seconds a second of speech", "over plain's", "noise"),
        title=f"{case.name}: {case.batch} x {case.seconds} s, beam {beam}, {states} pieces",
    )
    for name in runs:
        ratio = taken[name].best / taken["plain"].best
        table.add_row(
            *(name, f"{taken[name].best / audio:.3f}", judge(ratio), noise({name: taken[name]}))
        )
    return table


def tables(device: str, quick: bool) -> list[Table]:
    """Measure training steps and decoding; `quick` uses narrow networks on one second."""
    chosen, seconds, beam, states = list_cases(device), 20.0, 8, 25
    if quick:
        small = {"dim": 16, "num_heads": 2, "ffn_dim": 8, "csgu_dim": 8, "csgu_kernel": 3}
        small |= {"channels": (4, 4), "kernels": (3, 3), "strides": (2, 2)}
        chosen = [
            Case(
                c.name, RecognizerConfig(c.config.encoder, **small, residuals=(False, False)), 1, 2
            )
            for c in chosen
        ]
        seconds, beam, states = 0.2, 2, 3
    return [*(measure_training(case, device, seconds) for case in chosen),
            measure_decoding(chosen[0], device, beam, states, seconds)]  # fmt: skip
