"""Filters of the softmax map against plain fused attention and against the published A^2."""

from collections.abc import Callable
from typing import NamedTuple

import timm
import torch
from attention_core import GFSA, AttnScale, CenteredAttention, Plain, Softmax, attach
from measure import Step, compare_with_aim, format_noise, measure_peak, measure_steps
from published import PublishedGFSA
from rich.table import Table
from torch import Tensor, nn

HEAD_DIM = 64


class Shape(NamedTuple):
    """The sizes of attention in a model, and the most that GFSA / plain should be there."""

    batch: int
    heads: int
    length: int
    is_causal: bool = False
    aim: float | None = None


SHAPES = {
    **{f"DeiT-S, batch {batch}": Shape(batch, 6, 197, aim=1.5) for batch in (8, 32, 80, 128, 256)},
    "BERT": Shape(1, 12, 512),
    "GPT-2": Shape(1, 12, 1024, is_causal=True),
    "12 heads": Shape(1, 12, 2048, aim=1.75),
}
QUICK_SHAPES = {"quick": Shape(2, 2, 32), "quick, causal": Shape(2, 2, 64, is_causal=True)}
FILTERS: dict[str, Callable[[int], nn.Module]] = {
    "plain": Plain,
    "GFSA": GFSA,
    "AttnScale": AttnScale,
    "centered": CenteredAttention,
}
METHODS = FILTERS | {"literal": PublishedGFSA}


def build_step(name: str, shape: Shape, device: str) -> Step:
    """Build one forward and backward pass of a filter; a model projects q, k and v together."""
    place = {"device": device, "dtype": torch.bfloat16 if device == "cuda" else torch.float32}
    size = (shape.batch, shape.length, 3, shape.heads, HEAD_DIM)
    q, k, v = (t.requires_grad_() for t in torch.randn(size, **place).permute(2, 0, 3, 1, 4))
    filter, grad = METHODS[name](shape.heads).to(device), torch.randn(v.shape, **place)
    leaves = [q, k, v, *(w for w in filter.parameters() if w.requires_grad)]

    def run_step() -> tuple[Tensor, ...]:
        A = Softmax(q, k, is_causal=shape.is_causal)
        return torch.autograd.grad(filter(A.dense() if name == "literal" else A, v), leaves, grad)

    return run_step


def measure_speed(device: str, quick: bool) -> Table:
    """Time each filter beside plain attention, and the published form beside ours."""
    table = Table(
        *("model", "batch x heads x n", "plain ms", "GFSA / plain"),
        *("AttnScale / plain (aim <= 1.15)", "centered / plain (aim <= 1.15)"),
        *("published GFSA / ours", "noise"),
        title=f"Filters of heads of width {HEAD_DIM}, forward and backward",
    )
    for model, shape in (QUICK_SHAPES if quick else SHAPES).items():
        steps = {name: build_step(name, shape, device) for name in METHODS}
        timings = measure_steps(steps, device, 0.2 if quick else 20.0, min_rounds=3)
        best = {name: timing.best for name, timing in timings.items()}
        table.add_row(
            *(model, f"{shape.batch} x {shape.heads} x {shape.length}"),
            f"{1e3 * best['plain']:.2f}",
            compare_with_aim(best["GFSA"] / best["plain"], most=shape.aim),
            compare_with_aim(best["AttnScale"] / best["plain"], most=1.15),
            compare_with_aim(best["centered"] / best["plain"], most=1.15),
            f"{best['literal'] / best['GFSA']:.2f}",
            format_noise(timings),
        )
    return table


def measure_memory(device: str, quick: bool) -> Table:
    """Measure the peak of each filter by length; of the published form at the first length only."""
    lengths, heads = ([64] if quick else [2048, 4096, 8192]), 4
    table = Table(
        *("n", *(f"{name} MiB" for name in METHODS)),
        title=f"Peak memory of the same with {heads} heads, operands apart",
    )
    small = Shape(1, heads, 16)
    for n in lengths:
        names = METHODS if n == lengths[0] and not quick else FILTERS
        shape = Shape(1, heads, n)
        peaks = [
            measure_peak(build_step, (name, small, device), (name, shape, device)) for name in names
        ]
        table.add_row(f"{n}", *(f"{peak:.1f}" for peak in peaks))
    return table


def build_deit_step(name: str, batch: int, device: str) -> Step:
    """Build one training step of DeiT-S with a filter in each layer."""
    model = timm.create_model("deit_small_patch16_224").to(device)
    if name != "plain":
        attach(model, METHODS[name])
    images = torch.randn(batch, 3, 224, 224, device=device)
    return lambda: model(images).square().mean().backward()


def measure_model_memory(device: str, quick: bool) -> Table:
    """Measure the peak of a training step of DeiT-S with each filter."""
    batch = 2 if quick else 32  # more than the one of the small run
    peaks = {
        name: measure_peak(build_deit_step, (name, 1, device), (name, batch, device))
        for name in (("plain", "GFSA") if quick else FILTERS)
    }
    table = Table("method", "MiB", "/ plain (aim <= 1.10)", title=f"DeiT-S, batch {batch}: peak")
    plain = max(peaks["plain"], 1.0)  # a quick run may fit into what the small one left
    for name, peak in peaks.items():
        table.add_row(name, f"{peak:.0f}", compare_with_aim(peak / plain, most=1.10))
    return table


def build_tables(device: str, quick: bool) -> list[Table]:
    """Measure time and peak memory."""
    measures = (measure_speed, measure_memory, measure_model_memory)
    return [measure(device, quick) for measure in measures]
