"""Files of SMILES, read as streams: columns of a csv, or one a line; plain or gzipped."""

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import torch
from experiment_kit.errors import UserError
from torch_geometric.data import Data

from attention_graph.chemistry.features import featurize_ogb
from attention_graph.data.graph_cache import Record


def read_csv_rows(path: Path, smiles: Sequence[str], target: Sequence[str]) -> Iterator[Record]:
    """Yield the SMILES and the target of each row below the header; blank lines are no rows.

    `smiles` and `target` are names that a column may have; the first one that exists is read. A
    target that is not a number is NaN. Raises UserError for a missing column, an empty file, and
    one that is not csv text in UTF-8.
    """
    with _open_text(path) as file:
        reader = csv.reader(file)
        header = next(reader, None)
        if header is None:
            raise UserError(f"{path} is empty")
        names = [name.strip() for name in header]
        first, second = (_find_column(path, names, wanted) for wanted in (smiles, target))
        for row, cells in enumerate(filter(None, reader)):
            cells += [""] * (len(names) - len(cells))
            text = cells[first].strip()
            yield Record(row, (text, _parse_number(cells[second])), len(text))


def read_lines(path: Path) -> Iterator[Record]:
    """Yield the SMILES of each line, up to the first space; raises UserError for an empty file."""
    row = -1
    with _open_text(path) as file:
        for row, line in enumerate(file):
            text = next(iter(line.split()), "")
            yield Record(row, text, len(text))
    if row < 0:
        raise UserError(f"{path} is empty")


def featurize_row(content: tuple[str, float]) -> Data:
    """Make the graph of a SMILES and its target y (1,), with OGB's features."""
    smiles, target = content
    graph = featurize_ogb(smiles)
    graph.y = torch.tensor([target], dtype=torch.float32)
    return graph


@contextmanager
def _open_text(path: Path) -> Iterator[IO[str]]:
    try:
        open_text = gzip.open if path.suffix == ".gz" else open
        with open_text(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 ({error.reason})") from error
    except (csv.Error, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _find_column(path: Path, names: Sequence[str], wanted: Sequence[str]) -> int:
    for name in wanted:
        if name in names:
            return names.index(name)
    missing = " or ".join(map(repr, wanted))
    raise UserError(f"{path} has no column {missing}, but {', '.join(names)}")


def _parse_number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")
