"""Drawn graphs like molecules: what the sums along their paths take, and what encoding takes."""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from attention_graph.encodings import Batch, ShortestPaths, collate
from attention_graph.models import AttentionBias
from experiment_kit.memory import allocated
from measure import Step, clock, interleave, judge, noise, timed
from rich.table import Table
from torch import Tensor
from torch_geometric.data import Data

ENCODED = 2000  # molecules a second
PROCESSES = 2
HEADS, HOPS = 8, 20  # of Graphormer-slim


class Published(AttentionBias):
    """The bias with the bonds of one path of each pair laid out: `paths` (B, N, N, L, G)."""

    paths: Tensor

    def _edges(self, batch: Batch) -> Tensor:
        """As in https://github.com/microsoft/Graphormer, by one product for each hop."""
        W = self.hop.weight.view(-1, self.heads, self.heads)[: self.max_hops]
        along = self.bond(self.paths).mean(-2)  # (B, N, N, L, H)
        summed = torch.einsum("bijlh,lhk->bijk", along, W)
        return summed / batch.hops.clamp(1, self.max_hops).unsqueeze(-1)


def molecule(atoms: int, features: tuple[int, int], generator: torch.Generator) -> Data:
    """A chain with branches, and a ring of six for every eight atoms."""

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    before = draw(1, 3, atoms - 1)  # how far back an atom is bound
    bonds = {(max(0, i - int(b)), i) for i, b in enumerate(before, 1)}
    bonds |= {(i - 5, i) for i in range(6, atoms, 8)}
    ends = torch.tensor(sorted(bonds)).T
    columns, kinds = (512 * torch.arange(count) for count in features)
    bond = draw(2, 5, ends.shape[1], features[1]) + kinds
    return Data(
        x=draw(1, 29, atoms, features[0]) + columns,
        edge_index=torch.cat([ends, ends.flip(0)], 1),
        edge_attr=torch.cat([bond, bond]),
        y=torch.randn(1, generator=generator),
    )


def molecules(count: int, atoms: int, features: tuple[int, int] = (1, 1)) -> list[Data]:
    """As many graphs of about so many atoms."""
    generator = torch.Generator().manual_seed(0)
    sizes = atoms * (1 + 0.2 * torch.randn(count, generator=generator))
    return [molecule(max(2, round(n)), features, generator) for n in sizes.tolist()]


def gathered(graphs: list[Data], device: str) -> Batch:
    """Encode, collate, and move."""
    batch = collate([ShortestPaths()(graph) for graph in graphs])
    return Batch(*(part.to(device) if isinstance(part, Tensor) else part for part in batch))


def biases(kind: type[AttentionBias], batch: Batch) -> Step:
    """Forward and backward of the bias of one batch; which bonds lie on a path is drawn."""
    torch.manual_seed(0)
    bias = kind(HEADS, 64, 40, HOPS, 40).to(batch.hops.device)
    if isinstance(bias, Published):
        places = torch.arange(HOPS, device=batch.hops.device)
        drawn = torch.randint(2, 5, (*batch.hops.shape, HOPS), device=batch.hops.device)
        bias.paths = (drawn * (places < batch.hops.unsqueeze(-1))).unsqueeze(-1)
    return lambda: bias(batch).sum().backward()


def paths(device: str, sizes: list[tuple[int, int]], seconds: float) -> Table:
    """The mean over all paths by recursion, beside one path of each pair laid out."""
    watch = clock(device)
    table = Table(
        *("atoms", "graphs", "encode, ms", "bias, ms", "published, ms", "published / ours"),
        *("bias MiB", "published MiB", "published / ours, MiB", "noise"),
        title=f"Multi-hop edges of {HOPS} hops and {HEADS} heads, forward and backward",
    )
    for atoms, count in sizes:
        generator = torch.Generator().manual_seed(0)
        graphs = [molecule(atoms, (1, 1), generator) for _ in range(count)]
        batch = gathered(graphs, device)
        steps = {kind: biases(kind, batch) for kind in (AttentionBias, Published)}
        runs: dict[Any, Callable[[], float]] = {k: timed(s, watch) for k, s in steps.items()}
        runs["encode"] = timed(lambda graph=graphs[0]: ShortestPaths()(graph.clone()), watch)
        taken = interleave(runs, seconds, 3)
        ours, theirs = (taken[kind].best for kind in steps)
        leaner, fatter = (allocated(step, device) for step in steps.values())
        table.add_row(
            *(f"{atoms}", f"{count}", f"{1e3 * taken['encode'].best:.1f}", f"{1e3 * ours:.1f}"),
            *(f"{1e3 * theirs:.1f}", judge(theirs / ours), f"{leaner:.1f}", f"{fatter:.1f}"),
            *(judge(fatter / leaner), noise(taken)),
        )
    return table


def encoded(count: int) -> float:
    """Molecules of ZINC's size that one process encodes in a second of its own time."""
    torch.set_num_threads(1)
    graphs, encode = molecules(count, 23), ShortestPaths()
    encode(graphs[0].clone())  # the first call is a slow one
    began = time.process_time()
    for graph in graphs:
        encode(graph)
    return count / (time.process_time() - began)


def preprocessing(count: int) -> Table:
    """What several processes encode side by side."""
    with ProcessPoolExecutor(PROCESSES, get_context("forkserver")) as pool:
        rates = list(pool.map(encoded, [count] * PROCESSES))
    table = Table(
        *("processes", "molecules/s of each", "molecules/s"),
        title=f"ShortestPaths of graphs of 23 atoms, on the CPU; aim >= {ENCODED} molecules/s",
    )
    each = ", ".join(f"{rate:.0f}" for rate in rates)
    table.add_row(f"{PROCESSES}", each, judge(sum(rates), least=ENCODED))
    return table
