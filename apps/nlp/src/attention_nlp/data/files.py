"""Read text files and tables; a UserError names the file and the line of a mistake.

`datasets.load_dataset` reads the same formats, but is an optional dependency and names neither.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiment_kit.data.download import HubFiles, find_cached_table
from experiment_kit.errors import UserError

REVISIONS = {  # commits of data sets on the hub; those that are not known here are read at main
    "nyu-mll/glue": "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c",
    "Salesforce/wikitext": "b08601e04326c79dfdd32d625aee71d232d685c3",
    "aps/super_glue": "3de24cf8022e94f4ee4b9d55a6f539891524d646",
}
Row = Mapping[Any, Any]  # by column name, or by column number


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file without their ends; a byte order mark is skipped.

    Raises UserError for a missing file and for the first line that is not UTF-8.
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


def read_table(
    path: Path, columns: Sequence[str | int], header: bool = True, skip_short: bool = False
) -> list[Row]:
    """Read the rows of a tsv, jsonl or parquet file, which must have these columns.

    Tsv files have no quotes, as GLUE's. Without a header, columns are numbers from 0. With
    `skip_short`, rows of a tsv file that are too short are left out, and their number is printed.

    Raises UserError for a file that is missing, not UTF-8 or empty, for a missing column, and for
    the first row that is too short or has no columns.
    """
    readers: dict[str, Callable[[Path], Iterable[Row]]] = {
        ".jsonl": _read_json_lines,
        ".parquet": _read_parquet,
    }
    if path.suffix in readers:
        rows = list(readers[path.suffix](path))
    else:
        rows = list(_read_tsv(path, columns, header, skip_short))
    if not rows:
        raise UserError(f"{path} has no rows")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise UserError(f"{path}, row {number}: {row!r} is no object with columns")
        for column in columns:
            if column not in row:
                names = ", ".join(map(str, row))
                raise UserError(f"{path}, row {number}: no column {column!r} among {names}")
    return rows


def get_text(row: Row, column: str | int, where: str) -> str:
    """Return a field that must be a text; UserError if it is not."""
    if not isinstance(row[column], str):
        raise UserError(f"{where}: {column} is not a text, but {row[column]!r}")
    return row[column]


def _read_tsv(
    path: Path, columns: Sequence[str | int], header: bool, skip_short: bool
) -> Iterator[Row]:
    lines = read_lines(path)
    names: Sequence[Any] = next(lines, "").split("\t") if header else ()
    for name in columns if header else ():
        if name not in names:
            raise UserError(f"{path} has no column {name!r}; it has {', '.join(names)}")
    least = max((names.index(c) + 1 for c in columns), default=0) if header else 0
    skipped = 0
    for number, line in enumerate(lines, 1 + header):
        fields = line.split("\t")
        if len(fields) < least:
            if not skip_short:
                raise UserError(f"{path}, line {number}: {len(fields)} columns of {len(names)}")
            skipped += 1
            continue
        yield dict(zip(names or range(len(fields)), fields, strict=False))
    if skipped:
        print(f"{path}: left out {skipped} rows that are too short")


def _read_json_lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{path}, line {number}: not JSON ({error.msg})") from error


def _read_parquet(path: Path) -> list[Row]:
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} is not a readable parquet file") from error


def find_file(folders: Iterable[Path], names: Iterable[str]) -> Path | None:
    """Return the first file with one of the names in one of the folders, or None."""
    candidates = (folder / name for folder in folders for name in names)
    return next((path for path in candidates if path.is_file()), None)


def hub_files(name: str, config: str | None) -> HubFiles:
    """Return the parquet files of a data set on the hub, at the commit that is known, if any."""
    return HubFiles(name, (f"{config or 'data'}/*.parquet",), REVISIONS.get(name, "main"))


def find_hub_table(name: str, config: str | None, split: str) -> Sequence[Path]:
    """Return the files of a split in the cache of the hub; none unless all are there."""
    return find_cached_table(hub_files(name, config), config or "data", split)


def load_hub_rows(
    name: str,
    config: str | None,
    split: str,
    remedy: str = "set DATA_DIR to the folder that holds it",
    **options: Any,
) -> Iterator[Row]:
    """Yield the rows of a data set on the hub, from its cache if they are there.

    `options` go to `datasets.load_dataset`, which reads what is not cached. Raises UserError with
    the remedy if `datasets` is not installed or the hub is not reachable.
    """
    if not options and (paths := find_hub_table(name, config, split)):
        for path in paths:
            yield from _read_parquet(path)
        return
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise UserError(
            f"no `datasets` to load {name} from the hub: pip install datasets, or {remedy}"
        ) from error
    try:
        options = {"revision": REVISIONS.get(name)} | options
        yield from load_dataset(name, config, split=split, **options)
    except Exception as error:  # the client raises errors of many kinds without a network
        raise UserError(
            f"the hub does not give {name} ({type(error).__name__}): {remedy}"
        ) from error
