"""A folder of generated data: it bears its name when it is whole, and says what made it."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from experiment_kit.errors import UserError
from filelock import FileLock

RECORD = "generated.json"

Options = dict[str, int]


def make(
    folder: Path, options: Options, parts: Iterable[str], write: Callable[[Path], None]
) -> bool:
    """Call write(folder.part) and rename it to the folder; False where the folder is there.

    What an interrupted call left in `folder.part` is found there by the next. Raises a UserError
    where the folder, or the part, was made with other options, or lacks one of the parts.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = Path(place) / "ones"
    ...     [make(folder, {"seed": 0}, ["1.txt"], lambda p: (p / "1.txt").touch()) for _ in "ab"]
    [True, False]
    """
    part = folder.with_name(f"{folder.name}.part")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder.parent} cannot be made: {error.strerror}") from error
    with FileLock(f"{folder}.lock"):
        if folder.exists():
            _check(folder, options, "remove it to make another")
            if lacking := [name for name in parts if not (folder / name).exists()]:
                raise UserError(f"{folder} lacks {lacking[0]}: complete it or remove it")
            return False
        if not part.exists():
            _begin(part, options)
        _check(part, options, "finish it with these, or remove it")
        write(part)
        part.rename(folder)
        return True


def theirs(folder: Path) -> bool:
    """Tell whether a folder was not made here: the official one, say."""
    return not (folder / RECORD).exists()


def _begin(part: Path, options: Options) -> None:
    new = part.with_name(f"{part.name}.new")  # so that no part is without its record
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    (new / RECORD).write_text(json.dumps(options) + "\n")
    new.rename(part)


def _check(folder: Path, options: Options, remedy: str) -> None:
    if theirs(folder):
        return
    try:
        found = json.loads((folder / RECORD).read_text())
    except ValueError as error:
        raise UserError(f"{folder / RECORD} is no JSON: remove {folder}") from error
    if found != options:
        raise UserError(f"{folder} was made with {_flags(found)}: {remedy}")


def _flags(options: Options) -> str:
    return " ".join(f"--{name}={value}" for name, value in options.items())
