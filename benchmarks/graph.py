"""Graphormer with GFSA, its sums along paths, and the encoding of graphs: time and peak memory.

Graphs are random: chains with branches and rings of six, in size and bonds like the molecules of
ZINC and PCQM4M. On a CPU, the large network has two of its twelve layers, so that the encoding of
paths has a greater share of the time than in the whole network.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from attention_core import GFSA, Plain, SelfAttention
from attention_core.hosts.selection import select_layers
from attention_graph.encodings.batch import Batch
from attention_graph.models.graphormer import Graphormer, GraphormerConfig
from graph_paths import (
    HOPS,
    NUM_HEADS,
    PROCESSES,
    encode_batch,
    measure_encoding,
    measure_paths,
    random_molecules,
)
from measure import Step
from published import PublishedGFSAWithoutW1
from rich.table import Table
from torch import nn
from train_steps import build_train_step, compare_steps, set_wK


class Case(NamedTuple):
    """A network, the number of atom and bond features, the size of its graphs, and GFSA's aim."""

    name: str
    config: GraphormerConfig
    features: tuple[int, int]
    atoms: int
    batch: int
    most: float


def list_cases(device: str) -> list[Case]:
    """List the networks of ZINC and of PCQM4M; the paper reports 1.21 for the latter."""
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


METHODS: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "plain": (Plain, ":"),
    "GFSA": (lambda num_heads: GFSA(num_heads, K=2), ":"),
    "GFSA, even layers": (lambda num_heads: GFSA(num_heads, K=2), "1::2"),
    "GFSA, published": (lambda num_heads: PublishedGFSAWithoutW1(num_heads, K=2), ":"),
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
    set_wK(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return build_train_step(lambda: F.l1_loss(model(batch).float(), batch.y), optimizer, device)


def measure_training(case: Case, device: str, seconds: float) -> Table:
    """Measure a training step of each method beside plain, with published dropout and without."""
    batch = encode_batch(random_molecules(case.batch, case.atoms, case.features), device)
    table = Table(
        *("method", "dropout", "step, ms", "step / plain", "peak MiB", "peak / plain", "noise"),
        title=f"{case.name}, {case.batch} graphs of {case.atoms} atoms, "
        f"{case.config.num_layers} layers; aim: GFSA <= {case.most}",
    )
    for dropout in (0.1, 0.0):
        steps = {name: build_step(name, case, batch, dropout, device) for name in METHODS}
        for name, *cells in compare_steps(steps, device, seconds, {"GFSA": case.most}, {}):
            table.add_row(name, f"{dropout}", *cells)
    return table


def build_tables(device: str, quick: bool) -> list[Table]:
    """Measure training, paths and encoding; quick runs shallow networks on a few small graphs."""
    seconds, sizes, count = 20.0, [(23, 64), (128, 4), (512, 1)], 2000
    cases = list_cases(device)
    if quick:
        seconds, sizes, count = 0.2, [(5, 3), (12, 2)], 8
        small = {"num_layers": 2, "dim": 64, "ffn_dim": 8}
        cases = [c._replace(config=c.config._replace(**small), atoms=7, batch=3) for c in cases]
    tables = [measure_training(case, device, seconds) for case in cases]
    return [
        *tables,
        measure_paths(device, sizes, seconds / 2),
        measure_encoding(count, 1 if quick else PROCESSES),
    ]
