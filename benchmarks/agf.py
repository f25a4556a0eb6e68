"""AGF against softmax attention as whole modules: time and memory by length."""

import torch
from attention_core import AGF, SelfAttention
from measure import (
    Step,
    Timing,
    compare_with_aim,
    format_growth,
    format_noise,
    measure_peak,
    measure_steps,
)
from rich.table import Table

WIDTH, NUM_HEADS = 256, 4
BATCH = {"cpu": 1, "cuda": 16}  # a GPU waits for its launches at batch 1
LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]
MAX_SECONDS = 60.0  # for one run of softmax attention


def list_names(device: str) -> list[str]:
    """List what is measured: a GPU also runs AGF compiled, which fuses its small operations."""
    return ["softmax", "AGF"] + ["AGF compiled"] * (device == "cuda")


def build_step(name: str, n: int, device: str) -> Step:
    """Build one forward and backward pass of an attention module."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    kernel = None if name == "softmax" else AGF
    layer = SelfAttention(WIDTH, NUM_HEADS, kernel=kernel).to(device, dtype)
    x = torch.randn(BATCH[device], n, WIDTH, device=device, dtype=dtype, requires_grad=True)
    leaves, grad = [x, *layer.parameters()], torch.randn_like(x)
    run = torch.compile(layer, dynamic=False) if name.endswith("compiled") else layer
    return lambda: torch.autograd.grad(run(x), leaves, grad)


def measure_lengths(lengths: list[int], device: str, seconds: float) -> list[dict[str, Timing]]:
    """Time the modules at each length, softmax only where a run is expected to be short enough."""
    timings: list[dict[str, Timing]] = []
    predicted = 0.0
    for n in lengths:
        names = list_names(device)[predicted > MAX_SECONDS :]
        steps = {name: build_step(name, n, device) for name in names}
        timings.append(measure_steps(steps, device, seconds))
        if "softmax" in timings[-1]:
            predicted = 4 * timings[-1]["softmax"].best
    return timings


def format_row(n: int, timings: dict[str, Timing], peaks: dict[str, float]) -> list[str]:
    """Format the row of one length; a measure that is missing is "-"."""
    ms = [f"{1e3 * timings[name].best:.1f}" if name in timings else "-" for name in peaks]
    mib = [f"{peak:.1f}" for peak in peaks.values()]
    gains = ["-"] * (len(peaks) - 1)
    if "softmax" in timings:
        ratios = [timings["softmax"].best / timings[name].best for name in [*peaks][1:]]
        gains = [compare_with_aim(x, least=1.0 if n >= 1024 else None) for x in ratios]
    return [f"{n}", *ms, *gains, *mib, format_noise(timings)]


def build_tables(device: str, quick: bool) -> list[Table]:
    """Measure time and peak memory by length."""
    lengths, names = [64, 256] if quick else LENGTHS, list_names(device)
    peaks = [
        {name: measure_peak(build_step, (name, 16, device), (name, n, device)) for name in names}
        for n in lengths
    ]
    timings = measure_lengths(lengths, device, seconds=0.2 if quick else 5.0)
    table = Table(
        *("n", *(f"{name} ms" for name in names)),
        *(f"softmax / {name} (aim >= 1 from 1024)" for name in names[1:]),
        *(*(f"{name} MiB" for name in names), "noise"),
        title=f"Attention modules of width {WIDTH} with {NUM_HEADS} heads, forward and backward",
        caption=f"softmax is left out (-) where one run would take more than {MAX_SECONDS:.0f} s",
    )
    for row in zip(lengths, timings, peaks, strict=True):
        table.add_row(*format_row(*row))
    known = [[t[name].best for t in timings if name in t] for name in names]  # softmax ends first
    table.add_row(
        "exponent of n from 1024 (AGF's aim <= 1.15)",
        format_growth(lengths, known[0]),
        *(format_growth(lengths, best, most=1.15) for best in known[1:]),
        *[""] * (len(names) - 1),
        format_growth(lengths, [mib["softmax"] for mib in peaks]),
        *(format_growth(lengths, [mib[name] for mib in peaks], most=1.15) for name in names[1:]),
        "",
    )
    return [table]
