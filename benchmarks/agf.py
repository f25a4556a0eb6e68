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
KERNELS = {"softmax": None, "AGF": AGF}
MAX_SECONDS = 60.0  # for one run of softmax attention


def build_step(name: str, n: int, device: str) -> Step:
    """Build one forward and backward pass of an attention module."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    layer = SelfAttention(WIDTH, NUM_HEADS, kernel=KERNELS[name]).to(device, dtype)
    x = torch.randn(BATCH[device], n, WIDTH, device=device, dtype=dtype, requires_grad=True)
    leaves, grad = [x, *layer.parameters()], torch.randn_like(x)
    return lambda: torch.autograd.grad(layer(x), leaves, grad)


def measure_lengths(lengths: list[int], device: str, seconds: float) -> list[dict[str, Timing]]:
    """Time both modules at each length, softmax only where a run is expected to be short enough."""
    timings: list[dict[str, Timing]] = []
    predicted = 0.0
    for n in lengths:
        names = ["AGF"] if predicted > MAX_SECONDS else ["softmax", "AGF"]
        steps = {name: build_step(name, n, device) for name in names}
        timings.append(measure_steps(steps, device, seconds))
        if "softmax" in timings[-1]:
            predicted = 4 * timings[-1]["softmax"].best
    return timings


def format_row(n: int, timings: dict[str, Timing], peaks: dict[str, float]) -> list[str]:
    """Format the row of one length; a measure that is missing is "-"."""
    gain = "-"
    if "softmax" in timings:
        ratio = timings["softmax"].best / timings["AGF"].best
        gain = compare_with_aim(ratio, least=1.0 if n >= 1024 else None)
    ms = [f"{1e3 * timings[name].best:.1f}" if name in timings else "-" for name in KERNELS]
    mib = [f"{peaks[name]:.1f}" for name in KERNELS]
    return [f"{n}", *ms, gain, *mib, format_noise(timings)]


def build_tables(device: str, quick: bool) -> list[Table]:
    """Measure time and peak memory by length."""
    lengths = [64, 256] if quick else LENGTHS
    peaks = [
        {name: measure_peak(build_step, (name, 16, device), (name, n, device)) for name in KERNELS}
        for n in lengths
    ]
    timings = measure_lengths(lengths, device, seconds=0.2 if quick else 5.0)
    table = Table(
        *("n", "softmax ms", "AGF ms", "softmax / AGF (aim >= 1 from 1024)"),
        *("softmax MiB", "AGF MiB", "noise"),
        title=f"Attention modules of width {WIDTH} with {NUM_HEADS} heads, forward and backward",
        caption=f"softmax is left out (-) where one run would take more than {MAX_SECONDS:.0f} s",
    )
    for row in zip(lengths, timings, peaks, strict=True):
        table.add_row(*format_row(*row))
    softmax = {
        n: t["softmax"].best for n, t in zip(lengths, timings, strict=True) if "softmax" in t
    }
    table.add_row(
        "exponent of n from 1024 (AGF's aim <= 1.15)",
        format_growth(list(softmax), list(softmax.values())),
        format_growth(lengths, [t["AGF"].best for t in timings], most=1.15),
        "",
        format_growth(lengths, [mib["softmax"] for mib in peaks]),
        format_growth(lengths, [mib["AGF"] for mib in peaks], most=1.15),
        "",
    )
    return [table]
