"""Files of text and tables, read with one clear sentence for whatever is wrong with them."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiment_kit.errors import UserError

Row = Mapping[Any, Any]  # by the name of a column, or its number


def texts(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text, one at a time, without their ends; a mark at its start is none.

    Raises UserError for a file that is absent and for the first line that is not UTF-8.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.txt"
    >>> _ = path.write_bytes("one\\ntwö".encode())
    >>> list(texts(path))
    ['one', 'twö']
    """
    if not path.is_file():
        raise UserError(f"{path} does not exist")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path}, line {number}, byte {error.start}: the text is not UTF-8"
                ) from error
            yield text.rstrip("\r\n")


def table(
    path: Path,
    columns: Sequence[str | int],
    header: bool = True,
    separator: str = "\t",
    skip_short: bool = False,
) -> list[Row]:
    """The rows of a tsv, jsonl or parquet file with the columns asked for, and perhaps others.

    Tabular files quote nothing, as GLUE's do. Without a header, columns are numbers from 0. With
    `skip_short`, rows below a header that are too short are left out, and their number is printed.

    Raises UserError for a file that is absent, not UTF-8 or empty, for a column that it lacks,
    and for the first row that is too short or has no columns.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.tsv"
    >>> _ = path.write_text("label\\ttext\\n1\\tgood \\"day\\n")
    >>> table(path, ["text"])
    [{'label': '1', 'text': 'good "day'}]
    """
    reader: dict[str, Callable[[], Iterable[Row]]] = {
        ".jsonl": lambda: _json_lines(path),
        ".parquet": lambda: _parquet(path),
    }
    make = reader.get(path.suffix, lambda: _tabular(path, columns, header, separator, skip_short))
    rows = list(make())
    if not rows:
        raise UserError(f"{path} has no rows")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise UserError(f"{path}, row {number}: {row!r} is no object with columns")
        for column in columns:
            if column not in row:
                there = ", ".join(map(str, row))
                raise UserError(f"{path}, row {number}: no column {column!r} among {there}")
    return rows


def text(row: Row, column: str | int, where: str) -> str:
    """A field that must be a text.

    Raises UserError where it is none.

    >>> text({"sentence": None}, "sentence", "a.jsonl, row 3")
    Traceback (most recent call last):
    experiment_kit.errors.UserError: a.jsonl, row 3: sentence is no text, but None
    """
    if not isinstance(row[column], str):
        raise UserError(f"{where}: {column} is no text, but {row[column]!r}")
    return row[column]


def _tabular(
    path: Path, columns: Sequence[str | int], header: bool, separator: str, skip_short: bool
) -> Iterator[Row]:
    lines = texts(path)
    names: Sequence[Any] = next(lines, "").split(separator) if header else ()
    for name in columns if header else ():
        if name not in names:
            there = ", ".join(map(str, names))
            raise UserError(f"{path} has no column {name!r}; it has {there}")
    least = max((names.index(c) + 1 for c in columns), default=0) if header else 0
    skipped = 0
    for number, line in enumerate(lines, 1 + header):
        fields = line.split(separator)
        if len(fields) < least:
            if not skip_short:
                raise UserError(f"{path}, line {number}: {len(fields)} columns of {len(names)}")
            skipped += 1
            continue
        yield dict(zip(names or range(len(fields)), fields, strict=False))
    if skipped:
        print(f"{path}: {skipped} rows that are too short were left out")


def _json_lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(texts(path), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{path}, line {number}: not JSON ({error.msg})") from error


def _parquet(path: Path) -> list[Row]:
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} is not a parquet file that can be read") from error


def first_file(folders: Iterable[Path], names: Iterable[str]) -> Path | None:
    """The first file of those names in those folders.

    >>> first_file([Path("/")], ["no-such-file"])
    """
    candidates = (folder / name for folder in folders for name in names)
    return next((path for path in candidates if path.is_file()), None)


def hub_rows(name: str, config: str | None, split: str, revision: str | None = None) -> list[Row]:
    """The rows of a data set on the hub.

    Raises UserError where `datasets` is not installed and where the hub cannot be reached.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise UserError(
            f"no DATA_DIR, and no `datasets` to fetch {name}: set DATA_DIR to the folder that "
            "holds it, or pip install 'attention-nlp[hub]'"
        ) from error
    try:
        return list(load_dataset(name, config, split=split, revision=revision))
    except Exception as error:  # whatever the client raises without a network
        raise UserError(
            f"the hub could not give {name} ({type(error).__name__}): set DATA_DIR to the folder "
            "that holds it"
        ) from error
