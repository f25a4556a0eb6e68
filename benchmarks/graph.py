"""Graphormer with GFSA, its sums along paths, and the encoding of graphs: time and peak memory.

Graphs are random: chains with branches and rings of six, in size and bonds like the molecules of
ZINC and PCQM4M. On a CPU, the large network has two of its twelve layers; the encoding of paths is
a greater share of two layers than of twelve.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from attention_core import GFSA, Plain, SelfAttention
from attention_core.attach import select_layers
from attention_graph.encodings import Batch
from attention_graph.models import Graphormer, GraphormerConfig
from experiment_kit.diagnostics.efficiency import peak_allocated_mib
from graph_paths import (
    HOPS,
    NUM_HEADS,
    encode_batch,
    measure_encoding,
    measure_paths,
    random_molecules,
)
from measure import Step, clock, interleave, judge, noise, timed
from rich.table import Table
from torch import Tensor, nn


class Case(NamedTuple):
    """A network, the features of its atoms and bonds, the size of its graphs, and GFSA's aim."""

    name: str
    config: GraphormerConfig
    features: tuple[int, int]
    atoms: int
    batch: int
    most: float


def list_cases(device: str) -> list[Case]:
    """List the networks of ZINC and of PCQM4M, for which the paper has 1.21 in all."""
    on_cpu = device == "cpu"
    slim = GraphormerConfig(
        64, 64, dim=80, num_heads=NUM_HEADS, num_layers=12, ffn_dim=80,
        distances=40, degrees=64, max_hops=HOPS, hop_rows=40,
    )  # fmt: skip
    base = GraphormerConfig(
        512 * 9 + 1, 512 * 3 + 1, dim=768, num_heads=32, num_layers=2 if on_cpu else 12,
        ffn_dim=768, distances=512, degrees=512, max_hops=5, hop_rows=128,
    )  # fmt: skip
    return [
        Case("ZINC, slim", slim, (1, 1), 23, 64 if on_cpu else 256, 1.10),
        Case("PCQM4M, base", base, (9, 3), 14, 32 if on_cpu else 1024, 1.21),
    ]


class MaterializedGFSA(GFSA):
    """GFSA as published code computes it, by A^2: https://github.com/jeongwhanchoi/GFSA"""

    def forward(self, A: Any, v: Tensor) -> Tensor:
        wK, dropout = self.wK.to(v.dtype).view(-1, 1, 1), A.dropout
        A = F.dropout(A.dense(), dropout)
        return (A + wK * (A + (self.K - 1) * (A @ A - A))) @ v


METHODS: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "plain": (Plain, ":"),
    "GFSA": (lambda num_heads: GFSA(num_heads, K=2), ":"),
    "GFSA, even layers": (lambda num_heads: GFSA(num_heads, K=2), "1::2"),
    "GFSA, published": (lambda num_heads: MaterializedGFSA(num_heads, K=2), ":"),
}


def build_step(method: str, case: Case, batch: Batch, dropout: float, device: str) -> Step:
    """Build a training step with AdamW, all dropout at one rate; bfloat16 on a GPU."""
    torch.manual_seed(0)
    make_filter, layers = METHODS[method]
    dim, num_heads = case.config.dim, case.config.num_heads
    selected = select_layers(layers, case.config.num_layers)

    def build_attention(layer: int) -> SelfAttention:
        filter = make_filter if layer in selected else Plain
        return SelfAttention(dim, num_heads, filter, dropout=dropout)

    model = Graphormer(case.config, build_attention, dropout, dropout).to(device).train()
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


def measure_training(case: Case, device: str, seconds: float) -> Table:
    """Measure a training step of each method beside plain, with published dropout and without."""
    graphs = random_molecules(case.batch, case.atoms, case.features)
    watch, batch = clock(device), encode_batch(graphs, device)
    table = Table(
        *("method", "dropout", "step, ms", "step / plain", "peak MiB", "peak / plain", "noise"),
        title=f"{case.name}, {case.batch} graphs of {case.atoms} atoms, "
        f"{case.config.num_layers} layers; aim: GFSA <= {case.most}",
    )
    for dropout in (0.1, 0.0):
        steps = {name: build_step(name, case, batch, dropout, device) for name in METHODS}
        taken = interleave({n: timed(step, watch) for n, step in steps.items()}, seconds, 3)
        peaks = {name: peak_allocated_mib(step, device) for name, step in steps.items()}
        for name in METHODS:
            aim = case.most if name == "GFSA" else None
            table.add_row(
                *(name, f"{dropout}", f"{1e3 * taken[name].best:.0f}"),
                judge(taken[name].best / taken["plain"].best, aim),
                f"{peaks[name]:.0f}",
                judge(peaks[name] / peaks["plain"]),
                noise({name: taken[name]}),
            )
    return table


def tables(device: str, quick: bool) -> list[Table]:
    """Measure training, paths and encoding; quick runs shallow networks on a few small graphs."""
    seconds, sizes, count = 20.0, [(23, 64), (128, 4), (512, 1)], 2000
    cases = list_cases(device)
    if quick:
        seconds, sizes, count = 0.2, [(5, 3), (12, 2)], 8
        small = {"num_layers": 2, "dim": 64, "ffn_dim": 8}
        cases = [c._replace(config=c.config._replace(**small), atoms=7, batch=3) for c in cases]
    trained = [measure_training(case, device, seconds) for case in cases]
    return [*trained, measure_paths(device, sizes, seconds / 2), measure_encoding(count)]
