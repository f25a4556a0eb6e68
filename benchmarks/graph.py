"""Graphormer with GFSA, its sums along paths, and the encoding of graphs: time and peak memory.

Graphs are drawn: chains with branches and rings of six, in size and bonds like the molecules of
ZINC and PCQM4M. A CPU is given two of the twelve layers of the large network, whose encoding of
paths is a greater share of them than of twelve.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from attention_core import GFSA, Plain, SelfAttention
from attention_core.attach import select_layers
from attention_graph.encodings import Batch
from attention_graph.models import Graphormer, Size
from experiment_kit.memory import allocated
from graph_paths import HEADS, HOPS, gathered, molecules, paths, preprocessing
from measure import Step, clock, interleave, judge, noise, timed
from rich.table import Table
from torch import Tensor, nn


class Case(NamedTuple):
    """A network, the features of its atoms and bonds, the size of its graphs, and GFSA's aim."""

    name: str
    size: Size
    features: tuple[int, int]
    atoms: int
    batch: int
    most: float


def cases(device: str) -> list[Case]:
    """The network of ZINC, and the one of PCQM4M, for which the paper has 1.21 in all."""
    on_cpu = device == "cpu"
    slim = Size(64, 64, 80, HEADS, 12, 80, 40, 64, HOPS, 40)
    base = Size(512 * 9 + 1, 512 * 3 + 1, 768, 32, 2 if on_cpu else 12, 768, 512, 512, 5, 128)
    return [
        Case("ZINC, slim", slim, (1, 1), 23, 64 if on_cpu else 256, 1.10),
        Case("PCQM4M, base", base, (9, 3), 14, 32 if on_cpu else 1024, 1.21),
    ]


class Literal(GFSA):
    """GFSA as published code computes it, by A^2: https://github.com/jeongwhanchoi/GFSA"""

    def forward(self, A: Any, v: Tensor) -> Tensor:
        wK, dropout = self.wK.to(v.dtype).view(-1, 1, 1), A.dropout
        A = F.dropout(A.dense(), dropout)
        return (A + wK * (A + (self.K - 1) * (A @ A - A))) @ v


METHODS: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "plain": (Plain, ":"),
    "GFSA": (lambda heads: GFSA(heads, K=2), ":"),
    "GFSA, even layers": (lambda heads: GFSA(heads, K=2), "1::2"),
    "GFSA, published": (lambda heads: Literal(heads, K=2), ":"),
}


def training(method: str, case: Case, batch: Batch, dropout: float, device: str) -> Step:
    """Forward, backward and a step of AdamW, all dropout at one rate; bfloat16 on a GPU."""
    torch.manual_seed(0)
    make, layers = METHODS[method]
    chosen, width, heads = select_layers(layers, case.size.depth), case.size.width, case.size.heads

    def attention(layer: int) -> SelfAttention:
        return SelfAttention(width, heads, make if layer in chosen else Plain, dropout=dropout)

    model = Graphormer(case.size, attention, dropout, dropout).to(device).train()
    for filter in (m for m in model.modules() if isinstance(m, GFSA)):
        nn.init.constant_(filter.wK, 0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = F.l1_loss(model(batch).float(), batch.y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def speed(case: Case, device: str, seconds: float) -> Table:
    """A training step of each method beside the plain one's, with published dropout and without."""
    watch, batch = clock(device), gathered(molecules(case.batch, case.atoms, case.features), device)
    table = Table(
        *("method", "dropout", "step, ms", "step / plain", "peak MiB", "peak / plain", "noise"),
        title=f"{case.name}, {case.batch} graphs of {case.atoms} atoms, {case.size.depth} layers; "
        f"aim: GFSA <= {case.most}",
    )
    for dropout in (0.1, 0.0):
        steps = {name: training(name, case, batch, dropout, device) for name in METHODS}
        taken = interleave({n: timed(step, watch) for n, step in steps.items()}, seconds, 3)
        peaks = {name: allocated(step, device) for name, step in steps.items()}
        for name in METHODS:
            table.add_row(
                *(name, f"{dropout}", f"{1e3 * taken[name].best:.0f}"),
                judge(
                    taken[name].best / taken["plain"].best, case.most if name == "GFSA" else None
                ),
                f"{peaks[name]:.0f}",
                judge(peaks[name] / peaks["plain"]),
                noise({name: taken[name]}),
            )
    return table


def tables(device: str, quick: bool) -> list[Table]:
    """Training, paths and pre-processing; quick runs shallow networks on a few small graphs."""
    seconds, sizes, count = 20.0, [(23, 64), (128, 4), (512, 1)], 2000
    chosen = cases(device)
    if quick:
        seconds, sizes, count = 0.2, [(5, 3), (12, 2)], 8
        chosen = [
            case._replace(size=case.size._replace(depth=2, width=64, hidden=8), atoms=7, batch=3)
            for case in chosen
        ]
    trained = [speed(case, device, seconds) for case in chosen]
    return [*trained, paths(device, sizes, seconds / 2), preprocessing(count)]
