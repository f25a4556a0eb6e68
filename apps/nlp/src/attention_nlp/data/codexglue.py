"""CodeXGLUE's files of functions in all their layouts: https://github.com/microsoft/CodeXGLUE."""

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from experiment_kit.data.split import stratified
from experiment_kit.errors import UserError

from attention_nlp.data.encoding import Example
from attention_nlp.data.files import Row, first_file, table, text, texts

SPLITS = {"train": ("train",), "valid": ("valid", "validation"), "test": ("test",)}
_DEVIGN_TEST = "devign_test.jsonl"  # the one part of Devign that is mirrored in small files
_LABELS = {"0": 0, "1": 1, "False": 0, "True": 1}
SAMPLED = "functions.jsonl", "pairs_test.txt"  # a sample of BigCloneBench's test pairs


def named(split: str, *suffixes: str) -> list[str]:
    """The names that the file of a split may have.

    >>> named("valid", ".jsonl")
    ['valid.jsonl', 'validation.jsonl']
    """
    return [f"{name}{suffix}" for suffix in suffixes for name in SPLITS[split]]


def devign(folder: Path, split: str) -> list[Example]:
    """The functions of a split of Devign; white space in them is collapsed.

    A folder has `function.json` and a file of indices into it for each split, `train.txt`; or a
    file of functions for each, `train.jsonl` or `train.parquet`; or Devign's test set alone,
    `devign_test.jsonl`, which is then split in itself, the same for every seed: a fifth to test,
    a tenth to choose the epoch, so that no result can be compared with a published one.

    Raises UserError for a column, an index or a label that is not there or not right.
    """
    if path := first_file([folder], named(split, ".jsonl", ".parquet")):
        return defects(table(path, ["target"]), str(path))
    if (path := folder / "function.json").is_file():
        if listing := first_file([folder], named(split, ".txt")):
            return defects(_indexed(path, listing), str(listing))
        raise UserError(f"{folder} has function.json and no {SPLITS[split][0]}.txt")
    if not (path := folder / _DEVIGN_TEST).is_file():
        raise UserError(
            f"{folder} has no {split} of Devign: {SPLITS[split][0]}.jsonl, or function.json with "
            f"{SPLITS[split][0]}.txt"
        )
    examples = defects(table(path, ["target"]), str(path))
    return [examples[i] for i in _own_split(examples)[split]]


def _own_split(examples: Sequence[Example]) -> dict[str, np.ndarray]:
    labels = np.array([example.target for example in examples])
    rest, test = stratified(labels, 1 / 5, seed=0)
    kept, held = stratified(labels[rest], 1 / 8, seed=0)
    return {"train": rest[kept], "valid": rest[held], "test": test}


def _indexed(path: Path, listing: Path) -> list[Row]:
    try:
        functions = json.loads("\n".join(texts(path)))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: not JSON ({error.msg})") from error
    if not (isinstance(functions, list) and all(isinstance(one, Mapping) for one in functions)):
        raise UserError(f"{path} is no list of functions")
    rows = []
    for number, line in enumerate(texts(listing), 1):
        if not line.strip().isdecimal() or int(line) >= len(functions):
            last = len(functions) - 1
            raise UserError(f"{listing}, line {number}: {line!r} is no index from 0 to {last}")
        rows.append(functions[int(line)])
    return rows


def defects(rows: Iterable[Row], where: str) -> list[Example]:
    """Functions with their labels, 1 for a faulty one.

    >>> defects([{"func": "int  f;", "target": True}], "here")
    [Example(text='int f;', pair=None, target=1)]
    """
    numbered = ((row, f"{where}, row {number}") for number, row in enumerate(rows, 1))
    found = [
        Example(_code(row, ("func", "code"), at), None, _label(row.get("target"), at))
        for row, at in numbered
    ]
    return _some(found, where)


def clones(folder: Path, split: str) -> list[Example]:
    """The pairs of a split of BigCloneBench; white space in the functions is collapsed.

    A folder has `data.jsonl` with the functions and `train.txt` with a pair a line, two indices
    and a label; or `train.parquet` or `train.jsonl` with both functions a row; or the 4,000
    sampled test pairs, `functions.jsonl` and `pairs_test.txt`. Those are split by function, the
    same for every seed: three fifths of the functions to train on, a fifth to choose the epoch, a
    fifth to test. Pairs across are left out, so that no function is on two sides.

    Raises UserError for a column, an index or a label that is not there or not right.
    """
    if path := first_file([folder], named(split, ".jsonl", ".parquet")):
        return pairs(table(path, ["func1", "func2", "label"]), str(path))
    if (path := folder / "data.jsonl").is_file():
        if listing := first_file([folder], named(split, ".txt")):
            return _listed(listing, path)
        raise UserError(f"{folder} has data.jsonl and no {SPLITS[split][0]}.txt")
    path, listing = (folder / name for name in SAMPLED)
    if not path.is_file():
        raise UserError(
            f"{folder} has no {split} of BigCloneBench: data.jsonl with {SPLITS[split][0]}.txt"
        )
    examples = _listed(listing, path)
    sides = _sides({str(code) for example in examples for code in example[:2]})
    return [e for e in examples if sides[e.text] == sides[str(e.pair)] == split]


def _sides(codes: Iterable[str]) -> dict[str, str]:
    order = sorted(codes)
    random.Random(0).shuffle(order)
    ends = {"train": 3 / 5, "valid": 4 / 5, "test": 1.0}
    return {
        code: next(split for split, end in ends.items() if place < end * len(order))
        for place, code in enumerate(order)
    }


def _listed(listing: Path, path: Path) -> list[Example]:
    codes = {
        str(row["idx"]): _code(row, ("func",), f"{path}, row {number}")
        for number, row in enumerate(table(path, ["idx", "func"]), 1)
    }
    found = []
    for number, line in enumerate(texts(listing), 1):
        at, fields = f"{listing}, line {number}", line.split()
        if len(fields) != 3:
            raise UserError(f"{at}: {line!r} is not two indices and a label")
        for index in fields[:2]:
            if index not in codes:
                raise UserError(f"{at}: {path.name} has no function {index}")
        found.append(Example(codes[fields[0]], codes[fields[1]], _label(fields[2], at)))
    return _some(found, listing)


def pairs(rows: Iterable[Row], where: str) -> list[Example]:
    """Pairs of functions with their labels, 1 for clones; equal functions are one text in memory.

    >>> pairs([{"func1": "int  f;", "func2": "int g;", "label": False}], "here")
    [Example(text='int f;', pair='int g;', target=0)]
    """
    shared: dict[str, str] = {}
    found = []
    for number, row in enumerate(rows, 1):
        at = f"{where}, row {number}"
        first, second = (_code(row, (name,), at) for name in ("func1", "func2"))
        first, second = (shared.setdefault(code, code) for code in (first, second))
        found.append(Example(first, second, _label(row["label"], at)))
    return _some(found, where)


def _code(row: Row, columns: tuple[str, ...], where: str) -> str:
    column = next((name for name in columns if name in row), None)
    if column is None:
        there = ", ".join(map(str, row))
        raise UserError(f"{where}: no column {' or '.join(columns)} among {there}")
    return " ".join(text(row, column, where).split())


def _label(value: Any, where: str) -> int:
    if str(value) not in _LABELS:
        raise UserError(f"{where}: the label {value!r} is neither 0 nor 1")
    return _LABELS[str(value)]


def _some(found: list[Example], where: Path | str) -> list[Example]:
    if not found:
        raise UserError(f"{where} has no rows")
    return found
