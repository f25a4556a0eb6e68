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

from attention_graph.chemistry.features import molecule
from attention_graph.data.source import Record


def csv_records(path: Path, smiles: Sequence[str], target: Sequence[str]) -> Iterator[Record]:
    r"""The SMILES and the target of each row below the header, from 0; blank lines are no rows.

    The first column of either list that the header has is read. A target that is no number is
    NaN. Raises UserError where there is none of the columns, for an empty file, and for one that
    is no text in UTF-8 or no csv.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("name,smiles,y\nethanol,CCO,-0.5\n")
    >>> list(csv_records(path, ["smiles"], ["y"]))
    [Record(row=0, content=('CCO', -0.5), size=3)]
    """
    with _text(path) as file:
        reader = csv.reader(file)
        header = next(reader, None)
        if header is None:
            raise UserError(f"{path} is empty")
        names = [name.strip() for name in header]
        first, second = (_column(path, names, wanted) for wanted in (smiles, target))
        filled = (cells for cells in reader if cells)
        for row, cells in enumerate(filled):
            cells += [""] * (len(names) - len(cells))
            text = cells[first].strip()
            yield Record(row, (text, _number(cells[second])), len(text))


def line_records(path: Path) -> Iterator[Record]:
    """The SMILES of each line, up to the first space; raises UserError for a file without one."""
    row = -1
    with _text(path) as file:
        for row, line in enumerate(file):
            words = line.split()
            text = words[0] if words else ""
            yield Record(row, text, len(text))
    if row < 0:
        raise UserError(f"{path} is empty")


def labelled(content: tuple[str, float]) -> Data:
    """The graph of a SMILES and its target y (1,), with OGB's features.

    >>> labelled(("CO", 0.5)).y
    tensor([0.5000])
    """
    smiles, target = content
    graph = molecule(smiles)
    graph.y = torch.tensor([target], dtype=torch.float32)
    return graph


@contextmanager
def _text(path: Path) -> Iterator[IO[str]]:
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8-sig", newline="") as file:
                yield file
        else:
            with path.open(encoding="utf-8-sig", newline="") as file:
                yield file
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 ({error.reason})") from error
    except (csv.Error, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _column(path: Path, names: Sequence[str], wanted: Sequence[str]) -> int:
    for name in wanted:
        if name in names:
            return names.index(name)
    there = ", ".join(names)
    raise UserError(f"{path} has no column {' or '.join(map(repr, wanted))}, but {there}")


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")
