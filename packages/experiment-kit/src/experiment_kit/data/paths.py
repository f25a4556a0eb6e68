"""Local data: DATA_DIR, and the folders in it that a data set may be in."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from experiment_kit.errors import UserError


def find_data_root(data_dir: str | None) -> Path | None:
    """Return the folder of local data: the argument, else DATA_DIR, else None.

    Raises UserError if it is not a folder.
    """
    root = data_dir or os.environ.get("DATA_DIR") or None
    if root is not None and not Path(root).is_dir():
        raise UserError(f"DATA_DIR {root} is not a folder")
    return None if root is None else Path(root)


def find_dataset(
    data_dir: str | None,
    names: Iterable[str],
    is_dataset: Callable[[Path], bool],
    hint: str,
    subfolders: Sequence[str] = ("",),
) -> Path:
    """Return the first of the names that `is_dataset` in the data root or in its subfolders.

    Raises UserError, with the hint, if there is none.
    """
    first, *_ = names = list(names)
    root = find_data_root(data_dir)
    if root is None:
        raise UserError(f"no {first}: set DATA_DIR to the folder that contains it ({hint})")
    paths = (root / f"{subfolder}{name}" for name in names for subfolder in subfolders)
    if found := next((path for path in paths if is_dataset(path)), None):
        return found
    within = ", ".join(subfolder for subfolder in subfolders if subfolder)
    where = f"DATA_DIR {root} or its folders {within}" if within else f"DATA_DIR {root}"
    raise UserError(f"no {first} in {where} ({hint})")
