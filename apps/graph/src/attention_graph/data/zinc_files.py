"""The files that ZINC comes in, as records: dense pickles, flat arrays, lists of SMILES."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from experiment_kit.errors import UserError
from torch_geometric.data import Data

from attention_graph.chemistry.features import ZINC_ATOMS, zinc_graph
from attention_graph.data.molecules import line_records
from attention_graph.data.pickles import read_pickle
from attention_graph.data.source import Record

Part = Literal["train", "val", "test"]
_DRAWN = 10_000  # training molecules of the subset
_FIELDS = ("atom_type", "bond_type", "logP_SA_cycle_normalized")


class Arrays(NamedTuple):
    """Atom types (N,), bonds (M, 3) as begin, end and type, and the target."""

    atoms: np.ndarray
    bonds: np.ndarray
    target: float


def from_arrays(content: Arrays) -> Data:
    """The graph of a molecule's arrays, with y (1,).

    >>> from_arrays(Arrays(np.array([0]), np.zeros((0, 3), int), 0.5)).y
    tensor([0.5000])
    """
    graph = zinc_graph(content.atoms, content.bonds)
    graph.y = torch.tensor([content.target], dtype=torch.float32)
    return graph


def pickled(path: Path, index: Path | None = None) -> Iterator[Record]:
    """The molecules of benchmarking-gnns, all of a file or those that an index file names.

    A molecule is a dict with the tensors atom_type (N,), bond_type (N, N) and
    logP_SA_cycle_normalized (1,). Raises UserError for a file that holds anything else.

    Source: https://github.com/graphdeeplearning/benchmarking-gnns
    """
    molecules = read_pickle(path)
    if not isinstance(molecules, list):
        raise UserError(f"{path} holds a {type(molecules).__name__}, not a list of molecules")
    rows: Any = range(len(molecules)) if index is None else numbers(index, len(molecules), path)
    for row in rows:
        content = _sparse(molecules[row], f"{path}: molecule {row + 1}")
        yield Record(int(row), content, len(content.atoms))


def _sparse(found: Any, where: str) -> Arrays:
    try:
        atoms, dense, target = (np.asarray(found[field]) for field in _FIELDS)
        square = dense.reshape(len(atoms), len(atoms))
        begin, end = np.nonzero(np.triu(square, 1))
        bonds = np.stack([begin, end, square[begin, end]], 1)
        return Arrays(atoms.astype(np.uint8), bonds.astype(np.int32), float(target.reshape(())))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        text = f"must be a dict with {', '.join(_FIELDS)} of one size"
        raise UserError(f"{where} {text} ({error})") from error


def numbers(path: Path, count: int, of: Path) -> np.ndarray:
    """Row numbers (S,), separated by commas, all below `count`; raises UserError otherwise."""
    try:
        text = path.read_text()
        rows = np.array([int(cell) for cell in text.replace(",", " ").split()], np.int64)
    except ValueError as error:
        raise UserError(f"{path} must hold numbers, separated by commas ({error})") from error
    if not len(rows):
        raise UserError(f"{path} is empty")
    if rows.min() < 0 or rows.max() >= count:
        text = f"{rows.max() if rows.max() >= count else rows.min()}"
        raise UserError(f"{path} names molecule {text}, and {of} has {count}, from 0")
    return rows


def arrays(path: Path, part: Part) -> Iterator[Record]:
    """The molecules of zinc12k.npz: sizes, atoms and bonds of all, one after the other."""
    columns = _columns(path, part)
    atoms = np.split(columns["atom"], np.cumsum(columns["n"], dtype=np.int64)[:-1])
    bonds = np.split(columns["bond"], np.cumsum(columns["m"], dtype=np.int64)[:-1])
    for row, content in enumerate(zip(atoms, bonds, columns["y"].tolist(), strict=True)):
        yield Record(row, Arrays(*content), len(content[0]))


def _columns(path: Path, part: Part) -> dict[str, np.ndarray]:
    names = ("n", "m", "atom", "bond", "y")
    try:
        with np.load(path, allow_pickle=False) as file:
            columns = {name: file[f"{part}_{name}"] for name in names}
            types = tuple(map(str, file["atom_types"]))
    except Exception as error:  # whatever a damaged archive makes numpy raise
        raise UserError(f"{path} cannot be read: {error}") from error
    if types != ZINC_ATOMS:
        raise UserError(f"{path}: atom_types are not the {len(ZINC_ATOMS)} of ZINC")
    sizes = [int(columns[name].sum(dtype=np.int64)) for name in ("n", "m")]
    found = [len(columns[name]) for name in ("atom", "bond")]
    counts = {len(columns[name]) for name in ("n", "m", "y")}
    if sizes != found or len(counts) > 1:
        raise UserError(f"{path}: the arrays of {part} disagree about how many there are")
    return columns


def smiles(folder: Path, part: Part, small: bool) -> Iterator[Record]:
    """The molecules of ZINC-full, or of the subset, by their official index; rows are its own.

    The index of the training molecules counts the lines of a file that is not there, so that
    those of the subset are drawn: 10,000 of the pool, always the same ones.
    """
    if part == "train":
        yield from _pool(folder, small)
        return
    path = folder / f"zincfull_{'valid' if part == 'val' else 'test'}.txt"
    records = list(line_records(path))
    if small:
        chosen = numbers(folder / f"zinc12k_{part}.index", len(records), path)
        records = [records[row] for row in chosen]
    yield from records


def _pool(folder: Path, small: bool) -> Iterator[Record]:
    held = {
        record.content
        for part in ("valid", "test")
        for record in line_records(folder / f"zincfull_{part}.txt")
    }
    pool = [r for r in line_records(folder / "zinc250k.smi") if r.content not in held]
    if small and len(pool) > _DRAWN:
        # the draw that zinc12k.npz holds too
        draw = np.random.RandomState(0).choice(len(pool), _DRAWN, replace=False)
        pool = [pool[row] for row in np.sort(draw)]
    yield from pool
