"""Csv files with a header, read as streams, plain or gzipped; a UserError names file and line."""

import csv
import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from experiment_kit.errors import UserError, convert_user_errors


def read_csv_cells(
    path: Path, columns: Sequence[str | Sequence[str]], *, allow_empty: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line on which each row ends, and its cells in the named columns, without spaces.

    A column may have several names, of which the first that exists is read. Blank lines are no
    rows. Raises UserError for a missing file or column, a file without rows, one that is not csv
    text in UTF-8, a row with more cells than the header, unless they are empty, and, unless
    `allow_empty`, for an empty cell.
    """
    with open_text(path) as file:
        reader = csv.reader(file)
        names = [name.strip() for name in next(reader, [])]
        places = [_find_column(path, names, column) for column in columns]
        has_rows = False
        for row in filter(None, reader):
            has_rows = True
            if any(cell.strip() for cell in row[len(names) :]):  # a comma within a text cuts it
                text = f"{len(row)} cells, not {len(names)}: put quotes around a text with commas"
                raise UserError(f"{path}, line {reader.line_num}: {text}")
            row += [""] * (len(names) - len(row))
            cells = [row[place].strip() for place in places]
            if not (allow_empty or all(cells)):
                empty = names[places[cells.index("")]]
                raise UserError(f"{path}, line {reader.line_num}: {empty} is empty")
            yield reader.line_num, cells
    if not has_rows:
        raise UserError(f"{path} has no rows")


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """Open a text file in UTF-8, also a gzipped one; raise UserError if reading it fails."""
    open_file = gzip.open if path.suffix == ".gz" else open
    kinds = (OSError, EOFError, UnicodeDecodeError, csv.Error)
    with (
        convert_user_errors(*kinds, prefix=f"{path} cannot be read: "),
        open_file(path, "rt", encoding="utf-8-sig", newline="") as file,
    ):
        yield file


def _find_column(path: Path, names: Sequence[str], column: str | Sequence[str]) -> int:
    if not any(names):
        raise UserError(f"{path} is empty: its first line names the columns")
    wanted = [column] if isinstance(column, str) else column
    if found := [names.index(name) for name in wanted if name in names]:
        return found[0]
    missing = " or ".join(map(repr, wanted))
    raise UserError(f"{path} has no column {missing}, but {', '.join(names)}")
