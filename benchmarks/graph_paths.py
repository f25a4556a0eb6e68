"""Random graphs like molecules: time and memory of sums along their paths, and of encoding."""

import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from attention_graph.encodings.batch import Batch, collate_graphs
from attention_graph.encodings.paths import ShortestPaths
from attention_graph.models.paths import AttentionBias
from experiment_kit.training.efficiency import peak_allocated_mib
from measure import Step, compare_with_aim, format_noise, measure_steps
from rich.table import Table
from torch import Tensor
from torch_geometric.data import Data

MIN_RATE = 2000  # molecules a second
PROCESSES = 2
NUM_HEADS, HOPS = 8, 20  # Graphormer-slim


class MaterializedPaths(AttentionBias):
    """The bias with a table of the bonds of one path of each pair: `paths` (B, N, N, L, G)."""

    paths: Tensor

    def _encode_edges(self, batch: Batch) -> Tensor:
        """Sum as https://github.com/microsoft/Graphormer does, by one product for each hop."""
        W = self.hop.weight.view(-1, self.num_heads, self.num_heads)[: self.max_hops]
        along = self.bond(self.paths).mean(-2)  # (B, N, N, L, H)
        summed = torch.einsum("bijlh,lhk->bijk", along, W)
        return summed / batch.hops.clamp(1, self.max_hops).unsqueeze(-1)


def random_molecule(atoms: int, features: tuple[int, int], generator: torch.Generator) -> Data:
    """Draw a chain with branches, and a ring of six for every eight atoms."""

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    before = draw(1, 3, atoms - 1)  # atom i has a bond to atom i - before
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


def random_molecules(count: int, atoms: int, features: tuple[int, int] = (1, 1)) -> list[Data]:
    """Draw graphs of `atoms` atoms on average."""
    generator = torch.Generator().manual_seed(0)
    sizes = atoms * (1 + 0.2 * torch.randn(count, generator=generator))
    return [random_molecule(max(2, round(n)), features, generator) for n in sizes.tolist()]


def encode_batch(graphs: list[Data], device: str) -> Batch:
    """Encode graphs, collate them, and move them to the device."""
    batch = collate_graphs([ShortestPaths()(graph) for graph in graphs])
    return Batch(*(part.to(device) if isinstance(part, Tensor) else part for part in batch))


def build_bias_step(kind: type[AttentionBias], batch: Batch) -> Step:
    """Build forward and backward of the bias of one batch, with random bonds on the paths."""
    torch.manual_seed(0)
    bias = kind(NUM_HEADS, 64, 40, HOPS, 40).to(batch.hops.device)
    if isinstance(bias, MaterializedPaths):
        places = torch.arange(HOPS, device=batch.hops.device)
        drawn = torch.randint(2, 5, (*batch.hops.shape, HOPS), device=batch.hops.device)
        bias.paths = (drawn * (places < batch.hops.unsqueeze(-1))).unsqueeze(-1)
    return lambda: bias(batch).sum().backward()


def measure_paths(device: str, sizes: list[tuple[int, int]], seconds: float) -> Table:
    """Measure the recursion over all paths beside a table of one path of each pair."""
    table = Table(
        *("atoms", "graphs", "encode, ms", "bias, ms", "published, ms", "published / ours"),
        *("bias MiB", "published MiB", "published / ours, MiB", "noise"),
        title=f"Multi-hop edges of {HOPS} hops and {NUM_HEADS} heads, forward and backward",
    )
    for atoms, count in sizes:
        generator = torch.Generator().manual_seed(0)
        graphs = [random_molecule(atoms, (1, 1), generator) for _ in range(count)]
        batch = encode_batch(graphs, device)
        kinds = {"ours": AttentionBias, "published": MaterializedPaths}
        steps = {name: build_bias_step(kind, batch) for name, kind in kinds.items()}
        encode: dict[str, Step] = {"encode": lambda g=graphs[0]: ShortestPaths()(g.clone())}
        timings = measure_steps(steps | encode, device, seconds, min_rounds=3)
        ours, published = (timings[name].best for name in steps)
        our_peak, published_peak = (peak_allocated_mib(step, device) for step in steps.values())
        table.add_row(
            *(f"{atoms}", f"{count}", f"{1e3 * timings['encode'].best:.1f}", f"{1e3 * ours:.1f}"),
            *(f"{1e3 * published:.1f}", compare_with_aim(published / ours)),
            *(f"{our_peak:.1f}", f"{published_peak:.1f}"),
            *(compare_with_aim(published_peak / our_peak), format_noise(timings)),
        )
    return table


def measure_encoding_rate(count: int) -> float:
    """Count the molecules of ZINC's size that a process encodes in one second of CPU time."""
    torch.set_num_threads(1)
    graphs, encode = random_molecules(count, 23), ShortestPaths()
    encode(graphs[0].clone())  # the first call is slow
    began = time.process_time()
    for graph in graphs:
        encode(graph)
    return count / (time.process_time() - began)


def measure_encoding(count: int, processes: int = PROCESSES) -> Table:
    """Measure the encoding of several processes side by side."""
    with ProcessPoolExecutor(processes, get_context("forkserver")) as pool:
        rates = list(pool.map(measure_encoding_rate, [count] * processes))
    table = Table(
        *("processes", "molecules/s of each", "molecules/s"),
        title=f"ShortestPaths of graphs of 23 atoms, on the CPU; aim >= {MIN_RATE} molecules/s",
    )
    each = ", ".join(f"{rate:.0f}" for rate in rates)
    table.add_row(f"{processes}", each, compare_with_aim(sum(rates), least=MIN_RATE))
    return table
