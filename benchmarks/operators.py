"""Filters of the softmax map, fused, against plain attention and against the published A^2."""

from collections.abc import Callable

import torch
from attention_core import GFSA, AttnScale, CenteredAttention, Plain, Softmax
from measure import Step, clock, growth, interleave, judge, noise, peak, timed
from rich.table import Table
from torch import Tensor, nn

HEAD_WIDTH = 64
HEADS = {
    197: 8,
    512: 4,
    1024: 2,
    2048: 1,
    4096: 1,
}  # fewer for long sequences: seconds, not minutes
FILTERS: dict[str, Callable[[int], nn.Module]] = {
    "plain": Plain,
    "GFSA": GFSA,
    "AttnScale": AttnScale,
    "centered": CenteredAttention,
}


def literal(gfsa: GFSA, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """GFSA as published code computes it: (n, n) maps, A^2 among them.

    https://github.com/jeongwhanchoi/GFSA, which also lays out the identity; we leave that out.
    """
    w1, wK = gfsa.w1.to(v.dtype).view(-1, 1, 1), gfsa.wK.to(v.dtype).view(-1, 1, 1)
    A = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    return (w1 * A + wK * (A + (gfsa.K - 1) * (A @ A - A))) @ v


def make(name: str, n: int, heads: int, device: str) -> Step:
    """One forward and backward pass of a filter at batch 1."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shape, place = (1, heads, n, HEAD_WIDTH), {"device": device, "dtype": dtype}
    q, k, v = (torch.randn(shape, **place, requires_grad=True) for _ in range(3))
    filter, grad = FILTERS.get(name, GFSA)(heads).to(device), torch.randn(shape, **place)
    leaves = [q, k, v, *(w for w in filter.parameters() if w.requires_grad)]

    def step() -> tuple[Tensor, ...]:
        out = literal(filter, q, k, v) if name == "literal" else filter(Softmax(q, k), v)
        return torch.autograd.grad(out, leaves, grad)

    return step


def speed(device: str, quick: bool) -> Table:
    """Time of each filter over plain attention's, and of the published form over ours."""
    table = Table(
        *(
            "n x heads",
            "plain ms",
            "GFSA / plain (aim <= 1.8 to 2048)",
            "AttnScale / plain (aim <= 1.15)",
        ),
        "centered / plain (aim <= 1.15)",
        "published GFSA / ours (aim >= 3 at 1024, >= 6 at 4096)",
        "noise",
        title=f"Filters of heads of width {HEAD_WIDTH}, forward and backward",
    )
    for n, heads in ({32: 2, 64: 2} if quick else HEADS).items():
        steps = {name: make(name, n, heads, device) for name in (*FILTERS, "literal")}
        runs = {name: timed(step, clock(device)) for name, step in steps.items()}
        took = interleave(runs, seconds=0.2 if quick else 10.0, least=5)
        best = {name: timing.best for name, timing in took.items()}
        table.add_row(
            f"{n} x {heads}",
            f"{1e3 * best['plain']:.2f}",
            judge(best["GFSA"] / best["plain"], most=1.8 if n <= 2048 else 2.2),
            *(judge(best[name] / best["plain"], most=1.15) for name in ("AttnScale", "centered")),
            judge(best["literal"] / best["GFSA"], least={1024: 3.0, 4096: 6.0}.get(n)),
            noise(took),
        )
    return table


def memory(device: str, quick: bool) -> Table:
    """Peak of each filter by length, and its growth; the published form ends where A^2 is big."""
    # from 4096 on the maps are larger than those that a CPU forms
    sizes, heads = ([64, 256] if quick else [4096, 8192, 16384]), 4
    lengths = {name: sizes for name in (("GFSA",) if quick else FILTERS)} | {"literal": sizes[:1]}
    peaks = {
        name: [peak(make, (name, 16, heads, device), (name, n, heads, device)) for n in those]
        for name, those in lengths.items()
    }
    table = Table(
        *("n", *(f"{name} MiB" for name in peaks)),
        title=f"Peak memory of the same with {heads} heads, operands apart",
    )
    for i, n in enumerate(sizes):
        table.add_row(f"{n}", *(f"{p[i]:.1f}" if i < len(p) else "-" for p in peaks.values()))
    aims = {name: 1.15 for name in FILTERS}
    judged = (growth(sizes, found, aims.get(name)) for name, found in peaks.items())
    table.add_row("exponent of n (aim <= 1.15)", *judged)
    return table


def tables(device: str, quick: bool) -> list[Table]:
    """Time and memory."""
    return [speed(device, quick), memory(device, quick)]
