"""Speech encoders with GFSA: time of a training step by length, and of decoding.

On a CPU, the networks have two encoder layers instead of twelve and eighteen, at full width.
"""

from typing import NamedTuple

import torch
from attention_speech.decoding import BeamSearchConfig, beam_search
from attention_speech.models.recognizer import Recognizer, RecognizerConfig
from measure import Step, compare_with_aim, format_noise, measure_steps
from published import PublishedGFSAWithoutW1
from rich.table import Table
from torch import Tensor
from train_steps import build_gfsa_methods, build_train_step, compare_steps, set_wK

MAX_RATIO = 1.10  # a training step with GFSA over plain
NUM_MELS, NUM_TOKENS = 80, 5000
FRAMES = 100  # a second


class Case(NamedTuple):
    """A recognizer, and the batch of a step: utterances of `seconds` each."""

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


METHODS = build_gfsa_methods(PublishedGFSAWithoutW1)


def build_network(method: str, config: RecognizerConfig, device: str) -> Recognizer:
    """Build a recognizer whose wK is not 0."""
    torch.manual_seed(0)
    model = Recognizer(config, NUM_MELS, NUM_TOKENS)
    METHODS[method](model.transformer.encoder)
    set_wK(model)
    return model.to(device)


def build_encoder_step(method: str, case: Case, device: str) -> Step:
    """Build a training step with AdamW of front end and encoder."""
    model = build_network(method, case.config, device).train()
    weights = [*model.front_end.parameters(), *model.transformer.encoder.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)
    frames = FRAMES * case.seconds
    x = torch.randn(case.batch, frames, NUM_MELS, device=device)
    lengths = torch.full((case.batch,), frames, device=device)

    def compute_loss() -> Tensor:
        states, _ = model.encode(x, lengths)
        return states.float().square().mean()

    return build_train_step(compute_loss, optimizer, device)


def measure_training(case: Case, device: str, seconds: float) -> Table:
    """Compare a training step of each method with the plain one, with dropout."""
    steps = {name: build_encoder_step(name, case, device) for name in METHODS}
    table = Table(
        *("method", "step, ms", "step / plain", "peak MiB", "peak / plain", "noise"),
        title=f"{case.name}, {case.batch} x {case.seconds} s, "
        f"{case.config.num_encoder_layers} layers, dropout {case.config.dropout}; "
        f"aim: GFSA <= {MAX_RATIO}",
    )
    for cells in compare_steps(steps, device, seconds, {"GFSA": MAX_RATIO}, {}):
        table.add_row(*cells)
    return table


def measure_decoding(case: Case, device: str, beam: int, states: int, seconds: float) -> Table:
    """Time the beam search: random weights never end a text, so that it decodes `states` pieces."""
    search = BeamSearchConfig(beam_size=beam, max_decode_ratio=states / (25 * case.seconds))
    x = torch.randn(case.batch, FRAMES * case.seconds, NUM_MELS, device=device)
    lengths = torch.full((case.batch,), FRAMES * case.seconds, device=device)
    steps = {}
    for name in ("plain", "GFSA"):
        model = build_network(name, case.config, device).eval()

        @torch.no_grad()
        def decode_batch(model: Recognizer = model) -> None:
            beam_search(model, *model.encode(x, lengths), search)

        steps[name] = decode_batch
    timings, audio = measure_steps(steps, device, seconds), case.batch * case.seconds
    table = Table(
        *("method", "seconds a second of speech", "over plain's", "noise"),
        title=f"{case.name}: {case.batch} x {case.seconds} s, beam {beam}, {states} pieces",
    )
    for name, timing in timings.items():
        ratio = compare_with_aim(timing.best / timings["plain"].best)
        table.add_row(name, f"{timing.best / audio:.3f}", ratio, format_noise({name: timing}))
    return table


def build_tables(device: str, quick: bool) -> list[Table]:
    """Measure training steps and decoding; `quick` uses narrow networks, each on one second."""
    cases, seconds, beam, states = list_cases(device), 20.0, 8, 25
    if quick:
        small = {"dim": 16, "num_heads": 2, "ffn_dim": 8, "csgu_dim": 8, "csgu_kernel": 3}
        small |= {"channels": (4, 4), "kernels": (3, 3), "strides": (2, 2)}
        small["residuals"] = (False, False)
        cases = [
            Case(c.name, RecognizerConfig(c.config.encoder, **small), 1, 2) for c in cases[::2]
        ]
        seconds, beam, states = 0.2, 2, 3
    return [*(measure_training(case, device, seconds) for case in cases),
            measure_decoding(cases[0], device, beam, states, seconds)]  # fmt: skip
