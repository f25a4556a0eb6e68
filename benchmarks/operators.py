"""Filters of the softmax map against plain fused attention and against the published A^2."""

from collections.abc import Callable

import torch
from attention_core import GFSA, AttnScale, CenteredAttention, Plain, Softmax
from measure import (
    Step,
    compare_with_aim,
    format_growth,
    format_noise,
    measure_peak,
    measure_steps,
)
from published import PublishedGFSA
from rich.table import Table
from torch import Tensor, nn

HEAD_DIM = 64
# heads by length: fewer for long sequences, so that a step takes less than a second
NUM_HEADS = {197: 8, 512: 4, 1024: 2, 2048: 1, 4096: 1}
BATCH = {"cpu": 1, "cuda": 64}  # a GPU waits for its launches at batch 1
FILTERS: dict[str, Callable[[int], nn.Module]] = {
    "plain": Plain,
    "GFSA": GFSA,
    "AttnScale": AttnScale,
    "centered": CenteredAttention,
}
METHODS = FILTERS | {"literal": PublishedGFSA}


def build_step(name: str, n: int, num_heads: int, device: str) -> Step:
    """Build one forward and backward pass of a filter."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shape, place = (BATCH[device], num_heads, n, HEAD_DIM), {"device": device, "dtype": dtype}
    q, k, v = (torch.randn(shape, **place, requires_grad=True) for _ in range(3))
    filter, grad = METHODS[name](num_heads).to(device), torch.randn(shape, **place)
    leaves = [q, k, v, *(w for w in filter.parameters() if w.requires_grad)]

    def run_step() -> tuple[Tensor, ...]:
        literal = name == "literal"
        A = (q @ k.mT * HEAD_DIM**-0.5).softmax(-1) if literal else Softmax(q, k)
        return torch.autograd.grad(filter(A, v), leaves, grad)

    return run_step


def measure_speed(device: str, quick: bool) -> Table:
    """Time each filter beside plain attention, and the published form beside ours."""
    table = Table(
        *("n x heads", "plain ms", "GFSA / plain (aim <= 1.8 to 2048)"),
        *("AttnScale / plain (aim <= 1.15)", "centered / plain (aim <= 1.15)"),
        *("published GFSA / ours (aim >= 3 at 1024, >= 6 at 4096)", "noise"),
        title=f"Filters of heads of width {HEAD_DIM}, forward and backward",
    )
    for n, num_heads in ({32: 2, 64: 2} if quick else NUM_HEADS).items():
        steps = {name: build_step(name, n, num_heads, device) for name in METHODS}
        timings = measure_steps(steps, device, 0.2 if quick else 10.0, min_rounds=5)
        best = {name: timing.best for name, timing in timings.items()}
        table.add_row(
            *(f"{n} x {num_heads}", f"{1e3 * best['plain']:.2f}"),
            compare_with_aim(best["GFSA"] / best["plain"], most=1.8 if n <= 2048 else 2.2),
            compare_with_aim(best["AttnScale"] / best["plain"], most=1.15),
            compare_with_aim(best["centered"] / best["plain"], most=1.15),
            compare_with_aim(best["literal"] / best["GFSA"], least={1024: 3.0, 4096: 6.0}.get(n)),
            format_noise(timings),
        )
    return table


def measure_memory(device: str, quick: bool) -> Table:
    """Measure the peak of each filter by length; of the published form at the first length only."""
    # from 4096 on the maps are larger than those that a CPU forms
    sizes, heads = ([64, 256] if quick else [4096, 8192, 16384]), 4
    lengths = {name: sizes for name in (("GFSA",) if quick else FILTERS)} | {"literal": sizes[:1]}
    peaks = {
        name: [measure_peak(build_step, (name, 16, heads, device), (name, n, heads, device))
               for n in ns]
        for name, ns in lengths.items()
    }  # fmt: skip
    table = Table(
        *("n", *(f"{name} MiB" for name in peaks)),
        title=f"Peak memory of the same with {heads} heads, operands apart",
    )
    for i, n in enumerate(sizes):
        table.add_row(f"{n}", *(f"{p[i]:.1f}" if i < len(p) else "-" for p in peaks.values()))
    exponents = (
        format_growth(sizes, mib, 1.15 if name in FILTERS else None) for name, mib in peaks.items()
    )
    table.add_row("exponent of n (aim <= 1.15)", *exponents)
    return table


def build_tables(device: str, quick: bool) -> list[Table]:
    """Measure time and peak memory."""
    return [measure_speed(device, quick), measure_memory(device, quick)]
