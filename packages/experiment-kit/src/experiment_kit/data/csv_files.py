"""Text files of lines and of rows, read as streams; a UserError names file and line."""

import codecs
import csv
import gzip
import io
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, AnyStr

from experiment_kit.errors import UserError, convert_user_errors
from experiment_kit.run_files import warn_once

_EVAL = "(test|val|valid|validation|dev|eval)"
_SET = "[-_ ]?(?:set|data)?"
_TABLE = r"\.(csv|tsv|jsonl?|parquet|xlsx?)(\.gz)?"
_SPLITS = rf"(data|train)?_?split|(train|sub|test)?_?set|partition|.*fold|usage|is_?(train|{_EVAL})"
Columns = Sequence[str | Sequence[str]]  # a column may have several names


def read_csv_cells(
    path: Path, columns: Columns, *, allow_empty: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line on which each row ends, and its cells in the named columns, without spaces.

    The first name of a column that exists is read. Raises UserError for a missing file or column,
    two columns of a name, a file without rows, and, unless `allow_empty`, an empty cell.
    """
    rows = read_csv_table(path)
    _, names = next(rows)
    places = [_find_column(path, names, column) for column in columns]
    others = [name for name in names if name not in {names[place] for place in places}]
    if found := ", ".join(x for x in others if re.fullmatch(_SPLITS, x.lower())):
        warn_once(f"{path} has a column {found}, which is not read: its rows are one set")
    line = 0
    for line, row in rows:
        cells = [row[place] for place in places]
        if not (allow_empty or all(cells)):
            raise UserError(f"{path}, line {line}: {names[places[cells.index('')]]} is empty")
        yield line, cells
    if not line:
        raise UserError(f"{path} has no rows")


def read_csv_table(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the last line and the cells, without spaces, of the header, and of each row below it.

    A row is as wide as its header. Blank lines and rows of empty cells are no rows.
    """
    csv.field_size_limit(sys.maxsize)  # a text may be long
    # spaces after a quoted cell, which a strict reader refuses
    end_of_cell = re.compile(r'(?<!")((?:"")*")[ \t]+(?=,|[\r\n]*$)')
    lines = (end_of_cell.sub(r"\1", line) for line in read_text_lines(path))
    header = csv.reader(lines, skipinitialspace=True)  # not strict: it reads "text";"label"
    first = (row for row in header if any(row) and not row[0].startswith("sep="))  # Excel's
    names = [name.strip() for name in next(first, [])]
    reader, end = csv.reader(lines, skipinitialspace=True, strict=True), header.line_num
    yield end, names
    try:
        for row in reader:
            end, cells = header.line_num + reader.line_num, [cell.strip() for cell in row]
            hint = "put quotes around a text with commas, or name all columns"
            check_width(cells, names, f"{path}, line {end}", hint)
            if cells == names:
                raise UserError(f"{path}, line {end} is the header again: remove it")
            if any(cells):
                yield end, [*cells, *[""] * (len(names) - len(cells))][: len(names)]
    except csv.Error as error:
        hint = "put a text with quotes into quotes, and double those within it"
        raise UserError(f"{path}, line {end + 1}: {error}: {hint}") from error


def check_width(cells: Sequence[AnyStr], names: Sequence[object], where: str, hint: str) -> None:
    """Raise UserError for a row with more cells than names, but for empty ones."""
    width = len(names)  # without the last names that are empty, and those that pandas gives them
    while width and re.fullmatch("(Unnamed: [1-9].*)?", str(names[width - 1])):
        width -= 1
    if any(cell.strip() for cell in cells[width:]):
        raise UserError(f"{where}: {len(cells)} cells, not {width}: {hint}")


def find_split_files(path: Path, columns: Columns) -> dict[str, Path]:
    """Find the csv files of val and test beside one called train; UserError for a part of one."""
    ends = map(re.escape, re.split(rf"(?i)train(?:ing)?{_SET}(?![a-z])", path.name, maxsplit=1))
    other = rf"(?i:(?P<test>test(?:ing)?)|(?P<val>dev|val(?:id(?:ation)?)?)){_SET}".join(ends)
    names = re.split(r"(?i)(?<=part)[\W_]?\d+|\d+(?=-of-)", path.name)  # on the hub too
    part = r"[\W_]?\d+".join(map(re.escape, names))
    held_out = rf"({re.escape(path.stem)}[-_. ])?(train|{_EVAL})(ing)?{_SET}\d*{_TABLE}"
    found, length = {"train": path}, len(path.name)
    files = sorted({*path.parent.iterdir()} - {path}, key=lambda x: (abs(len(x.name) - length), x))
    for file in files:
        is_part = re.fullmatch(part, file.name)
        if is_part and re.search(r"-of-|part-\d{5}", path.name):
            raise UserError(f"{path} and {file} are parts of one table: join them")
        split = match.lastgroup if (match := re.fullmatch(other, file.name)) else None
        if split and split not in found:
            try:  # Kaggle's test sets have no targets
                next(read_csv_cells(file, columns))
                found[split] = file
            except UserError as error:
                warn_once(f"{error}: {file.name} is not read")
        elif is_part or split or re.fullmatch(held_out, file.name, re.IGNORECASE):
            warn_once(f"{file} is not read: one train.csv, dev.csv and test.csv are, as splits")
    return found


def read_text_lines(path: Path, newline: str = "") -> Iterator[str]:
    """Yield the lines of a text file with their ends; `newline` is as of `open`.

    The file is in UTF-8, or in UTF-16 with a byte order mark, plain or gzipped. Raises UserError
    for one that cannot be read, and for the first line that is not UTF-8.
    """
    kinds, text = (OSError, EOFError, zlib.error, UnicodeError), f"{path} cannot be read: "
    with convert_user_errors(*kinds, prefix=text), path.open("rb") as packed:
        file: Any = gzip.GzipFile(fileobj=packed) if packed.peek(2)[:2] == b"\x1f\x8b" else packed
        is_utf16 = file.peek(2).startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        encoding = "utf-16" if is_utf16 else "utf-8-sig"
        # bytes that are not UTF-8 become surrogates, whose line is known
        lines = io.TextIOWrapper(file, encoding, "surrogateescape", newline)
        for number, line in enumerate(lines, 1):
            if "\0" in line:
                others = "UTF-16 without its mark, parquet and zip have: save it as text in UTF-8"
                raise UserError(f"{path}, line {number} has characters NUL, as {others}")
            if not line.isascii() and (wrong := re.search(r"[\udc80-\udcff]", line)):
                raise UserError(f"{path}, line {number}, character {wrong.start() + 1}: not UTF-8")
            yield line.removeprefix("\ufeff")  # files may be joined


def _find_column(path: Path, names: Sequence[str], column: str | Sequence[str]) -> int:
    if not names:
        raise UserError(f"{path} is empty: its first line names the columns")
    wanted = [column] if isinstance(column, str) else column
    found = next((name for name in wanted if name in names), None)
    if found and names.count(found) == 1:
        return names.index(found)
    missing = " or ".join(map(repr, wanted)) + " (data.*_column names it)" * (len(wanted) == 1)
    if found:
        raise UserError(f"{path} has {names.count(found)} columns {found!r}: rename one")
    for mark, name in {";": "';'", "\t": "tabs", "|": "'|'"}.items():
        if len(names) == 1 and mark in names[0]:
            raise UserError(f"{path} is separated by {name}: save it with commas")
    if names[0].startswith(("{", "[{")):
        raise UserError(f"{path} is JSON: save it as csv")
    raise UserError(f"{path} has no column {missing}, but {', '.join(names)}")
