"""AGF against softmax attention as whole modules: where it overtakes, and that it is linear."""

import torch
from attention_core import AGF, SelfAttention
from measure import Step, Timing, clock, growth, interleave, judge, noise, peak, timed
from rich.table import Table

WIDTH, HEADS = 256, 4
LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]
KERNELS = {"softmax": None, "AGF": AGF}
PATIENCE = 60.0  # seconds that one run of softmax attention may take


def make(name: str, n: int, device: str) -> Step:
    """One forward and backward pass of an attention module at batch 1."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    layer = SelfAttention(WIDTH, HEADS, kernel=KERNELS[name]).to(device, dtype)
    x = torch.randn(1, n, WIDTH, device=device, dtype=dtype, requires_grad=True)
    leaves, grad = [x, *layer.parameters()], torch.randn_like(x)
    return lambda: torch.autograd.grad(layer(x), leaves, grad)


def times(lengths: list[int], device: str, seconds: float) -> list[dict[str, Timing]]:
    """Both at each length, softmax as long as our patience lasts."""
    found: list[dict[str, Timing]] = []
    predicted = 0.0
    for n in lengths:
        names = ["AGF"] if predicted > PATIENCE else ["softmax", "AGF"]
        found.append(
            interleave(
                {name: timed(make(name, n, device), clock(device)) for name in names}, seconds
            )
        )
        if "softmax" in found[-1]:
            predicted = 4 * found[-1]["softmax"].best
    return found


def row(n: int, took: dict[str, Timing], peaks: dict[str, float]) -> list[str]:
    """One length; - where there is nothing."""
    gain = "-"
    if "softmax" in took:
        ratio = took["softmax"].best / took["AGF"].best
        gain = judge(ratio, least=1.0 if n >= 1024 else None)
    ms = [f"{1e3 * took[name].best:.1f}" if name in took else "-" for name in KERNELS]
    return [f"{n}", *ms, gain, *(f"{peaks[name]:.1f}" for name in KERNELS), noise(took)]


def tables(device: str, quick: bool) -> list[Table]:
    """Time and memory by length."""
    lengths = [64, 256] if quick else LENGTHS
    peaks = [
        {name: peak(make, (name, 16, device), (name, n, device)) for name in KERNELS}
        for n in lengths
    ]
    took = times(lengths, device, seconds=0.2 if quick else 5.0)
    table = Table(
        *("n", "softmax ms", "AGF ms", "softmax / AGF (aim >= 1 from 1024)"),
        *("softmax MiB", "AGF MiB", "noise"),
        title=f"Attention modules of width {WIDTH} with {HEADS} heads, forward and backward",
        caption=f"softmax is left out (-) where one run would take more than {PATIENCE:.0f} s",
    )
    for n, seconds, mib in zip(lengths, took, peaks, strict=True):
        table.add_row(*row(n, seconds, mib))
    timed_at = [n for n, found in zip(lengths, took, strict=True) if "softmax" in found]
    softmax = [found["softmax"].best for found in took if "softmax" in found]
    table.add_row(
        "exponent of n from 1024 (AGF's aim <= 1.15)",
        growth(timed_at, softmax),
        growth(lengths, [found["AGF"].best for found in took], most=1.15),
        "",
        growth(lengths, [mib["softmax"] for mib in peaks]),
        growth(lengths, [mib["AGF"] for mib in peaks], most=1.15),
        "",
    )
    return [table]
