"""Kernels beside the public packages of them, of equal weights: `make bench-peers`."""

from collections.abc import Callable
from functools import partial
from unittest import mock

import torch
import torch.nn.functional as F
from attention_core import SelfAttention
from attention_core.kernels import Linformer, Performer, Reformer
from linformer.linformer import LinformerSelfAttention
from measure import Step, compare_with_aim, format_noise, measure_steps
from performer_pytorch import FastAttention
from reformer_pytorch import LSHAttention
from rich.table import Table
from torch import Tensor, nn

HEADS, HEAD_DIM, RANK, CHUNK, HASHES = 2, 64, 256, 64, 2
DIM = HEADS * HEAD_DIM
Pair = tuple[Callable[[], Tensor], Callable[[], Tensor]]


def draw(*shape: int, device: str) -> Tensor:
    return torch.randn(*shape, device=device, requires_grad=True)


def pair_performer(n: int, device: str) -> Pair:
    q, k, v = (draw(1, HEADS, n, HEAD_DIM, device=device) for _ in range(3))
    ours, theirs = Performer(DIM, HEADS, RANK), FastAttention(HEAD_DIM, RANK)
    theirs.projection_matrix = ours.to(device).projection
    return lambda: ours(q, k, v) @ v, lambda: theirs(q, k, v)


def pair_linformer(n: int, device: str) -> Pair:
    x = draw(1, n, DIM, device=device)
    kernel = partial(Linformer, length=n, rank=RANK, share_kv=False, per_head=False, init="uniform")
    ours = SelfAttention(DIM, HEADS, kernel=kernel).to(device)
    nn.init.zeros_(ours.qkv.bias)
    theirs = LinformerSelfAttention(DIM, n, RANK, HEADS).to(device)
    weights = ours.qkv.weight.detach().chunk(3)
    for layer, weight in zip((theirs.to_q, theirs.to_k, theirs.to_v), weights, strict=True):
        layer.weight = nn.Parameter(weight)
    theirs.proj_k = nn.Parameter(ours.kernel.E.detach()[0].mT.contiguous())
    theirs.proj_v = nn.Parameter(ours.kernel.F.detach()[0].mT.contiguous())
    theirs.to_out = ours.proj
    return lambda: ours(x), lambda: theirs(x)


def pair_reformer(n: int, device: str) -> Pair:
    q, v = (draw(1, HEADS, n, HEAD_DIM, device=device) for _ in range(2))
    options = {"scale_logits": True, "redraw": "never", "ring": "joined"}
    ours = Reformer(DIM, HEADS, HASHES, CHUNK, n // CHUNK, **options).to(device)
    ours.rotations = ours.rotations[:1].expand_as(ours.rotations).contiguous()
    theirs, rotations = LSHAttention(0.0, CHUNK, HASHES), ours.rotations[:1].permute(0, 3, 1, 2)

    def run_theirs() -> Tensor:
        with mock.patch("torch.randn", return_value=rotations):  # they draw at each call
            return theirs(q.flatten(0, 1), v.flatten(0, 1))[0].view_as(v)

    return lambda: ours(q, q, v) @ v, run_theirs


PAIRS = {
    "performer-pytorch": pair_performer,
    "linformer": pair_linformer,
    "reformer-pytorch": pair_reformer,
}


def build_steps(name: str, n: int, device: str) -> tuple[dict[str, Step], float]:
    """Build a forward and backward pass of both, and compare their results."""
    ours, theirs = PAIRS[name](n, device)
    with torch.no_grad():
        grad, expected = torch.ones_like(ours()), theirs()
        error = float((ours() - expected).abs().max() / expected.abs().max())
    steps = {
        "ours": lambda: ours().backward(grad),
        "theirs": lambda: theirs().backward(grad),
        "softmax": lambda: F.scaled_dot_product_attention(q, k, v).backward(torch.ones_like(v)),
    }
    q, k, v = (draw(1, HEADS, n, HEAD_DIM, device=device) for _ in range(3))
    return steps, error


def build_tables(device: str, quick: bool) -> list[Table]:
    """Time each kernel beside its package, and beside fused softmax attention."""
    n = 256 if quick else 4096
    table = Table(
        *("package", "ours ms", "theirs ms", "ours / theirs (aim <= 1)", "ours / softmax"),
        *("difference", "noise"),
        title=f"Kernels beside public packages, {HEADS} heads of {HEAD_DIM}, n = {n}, both passes",
    )
    for name in PAIRS:
        steps, error = build_steps(name, n, device)
        timings = measure_steps(steps, device, 0.2 if quick else 12.0, min_rounds=3)
        best = {name: timing.best for name, timing in timings.items()}
        table.add_row(
            *(name, f"{1e3 * best['ours']:.1f}", f"{1e3 * best['theirs']:.1f}"),
            compare_with_aim(best["ours"] / best["theirs"], most=1.0),
            *(f"{best['ours'] / best['softmax']:.2f}", f"{error:.0e}", format_noise(timings)),
        )
    return [table]
