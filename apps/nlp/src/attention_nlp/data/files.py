"""Read text files, tables, and tables of the hub; a UserError names the file and the place."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow
import pyarrow.parquet
from experiment_kit.data.csv_files import check_width, read_text_lines
from experiment_kit.data.download import HubFiles, fetch_hub_files
from experiment_kit.errors import UserError, convert_user_errors

REVISIONS = {  # commits of data sets on the hub; those that are not known here are read at main
    "nyu-mll/glue": "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c",
    "Salesforce/wikitext": "b08601e04326c79dfdd32d625aee71d232d685c3",
    "aps/super_glue": "3de24cf8022e94f4ee4b9d55a6f539891524d646",
}
_TABLES = (".csv", ".tsv", ".tab", ".json", ".jsonl", ".ndjson")
Row = Mapping[Any, Any]  # by column name, or by column number
T = TypeVar("T")


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file without their ends; raises UserError for another file."""
    for number, line in enumerate(read_text_lines(path, newline="\n")):
        text = line.rstrip("\r\n")
        # a file without LF has the line ends of old Macs
        yield from [text] if number or line.endswith("\n") else text.split("\r")


def read_samples(path: Path) -> list[str]:
    """Return the lines of a file of texts; raises UserError for one with other columns."""
    if path.name.lower().removesuffix(".gz").endswith(_TABLES):
        raise UserError(f"{path} may have a header or labels: write a .txt file with one sample a "
                        "line, without quotes around it, and tabs within a pair")  # fmt: skip
    return [*read_lines(path)]


def read_table(path: Path, columns: Sequence[Any] = ()) -> Iterator[Row]:
    """Yield the rows of a tsv, jsonl or parquet file.

    Tsv files have no quotes, as GLUE's; `columns` names those of a file without a header. A row
    that is cut short lacks its last columns.
    """
    if path.suffix.lower() == ".parquet":
        text = f"{path} is not a readable parquet file: "
        with convert_user_errors(OSError, pyarrow.ArrowException, prefix=text):
            for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
                yield from batch.to_pylist()
        return
    lines = read_lines(path)
    if path.suffix.lower() == ".jsonl":
        for number, line in enumerate(lines, 1):
            if line.strip():
                row = parse_json(line, path, number)
                if not isinstance(row, dict):
                    raise UserError(f"{path}, line {number}: no JSON object")
                yield row
        return
    names = columns or [name.strip() for name in next(lines, "").split("\t")]
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise UserError(f"{path} has {names.count(twice[0])} columns {twice[0]!r}: rename one")
    for number, line in enumerate(lines, 1 if columns else 2):
        if line.strip():
            cells = line.split("\t")
            check_width(cells, names, f"{path}, line {number}", "a tab within a text cuts it")
            yield dict(zip(names, cells, strict=False))


def parse_json(text: str, path: Path, line: int = 1) -> Any:
    """Parse JSON that begins at a line of a file; UserError if it is none."""
    try:
        content = json.loads(text)
        if "\\ud" in text.lower():  # half a surrogate pair is no character
            json.dumps(content, ensure_ascii=False).encode()
        return content
    except ValueError as error:
        place = f"{path}, line {line + getattr(error, 'lineno', 1) - 1}"
        raise UserError(f"{place}: not JSON ({getattr(error, 'msg', error)})") from error


def parse_rows(rows: Iterable[Any], where: object, parse: Callable[[Any], T]) -> list[T]:
    """Parse each row; UserError, with its number, for a row that is wrong, and for no rows."""
    parsed = []
    for number, row in enumerate(rows, 1):
        try:
            parsed.append(parse(row))
        except KeyError as error:
            names = ", ".join(map(str, row))
            raise UserError(f"{where}, row {number}: no column {error} among {names}") from error
        except (TypeError, ValueError) as error:
            raise UserError(f"{where}, row {number}: {error}") from error
    if not parsed:
        raise UserError(f"{where} has no rows")
    return parsed


def get_text(row: Row, column: str | int) -> str:
    """Return a field that must be a text; ValueError if it is not."""
    if not isinstance(row[column], str):
        raise ValueError(f"{column} is not a text, but {row[column]!r}")
    return row[column]


def parse_label(label: Any, labels: Sequence[Any]) -> int:
    """Return the id of a label, which is given by its name or its id; ValueError for another."""
    if label in labels:
        return labels.index(label)
    if label in range(len(labels)):
        return int(label)
    raise ValueError(f"the label {label!r} is none of {', '.join(map(str, labels))}")


def hub_files(name: str, config: str | None) -> HubFiles:
    """Return the parquet files of a data set on the hub, at the commit that is known, if any."""
    return HubFiles(name, (f"{config or 'data'}/*.parquet",), REVISIONS.get(name, "main"))


def find_hub_table(name: str, config: str | None, split: str) -> Sequence[Path]:
    """Return the files of a split in the cache of the hub; none unless all are there."""
    try:
        folder = fetch_hub_files(hub_files(name, config), cached=True) / (config or "data")
    except UserError:
        return ()
    paths = sorted(folder.glob(f"{split}-*.parquet"))
    count = re.search(r"-of-(\d+)", paths[0].name) if paths else None
    return paths if count and len(paths) == int(count[1]) else ()


def load_hub_rows(name: str, config: str | None, split: str) -> Iterator[Row]:
    """Yield the rows of a data set on the hub, which is downloaded once."""
    if not find_hub_table(name, config, split):
        fetch_hub_files(hub_files(name, config))
    for path in find_hub_table(name, config, split):
        yield from read_table(path)
