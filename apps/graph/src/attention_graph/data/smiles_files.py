"""Csv files of SMILES, read as streams, plain or gzipped."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from experiment_kit.data.csv_files import read_csv_cells
from torch_geometric.data import Data

from attention_graph.chemistry.features import featurize_ogb
from attention_graph.data.graph_cache import Record


def read_csv_rows(path: Path, smiles: Sequence[str], target: Sequence[str]) -> Iterator[Record]:
    """Yield the SMILES and the target of each row below the header; blank lines are no rows.

    `smiles` and `target` are names that a column may have; the first one that exists is read. A
    target that is not a number is NaN.
    """
    for row, (_, cells) in enumerate(read_csv_cells(path, (smiles, target), allow_empty=True)):
        yield Record(row, (cells[0], _parse_number(cells[1])), len(cells[0]))


def featurize_row(content: tuple[str, float]) -> Data:
    """Make the graph of a SMILES and its target y (1,), with OGB's features."""
    smiles, target = content
    graph = featurize_ogb(smiles)
    graph.y = torch.tensor([target], dtype=torch.float32)
    return graph


def _parse_number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")
