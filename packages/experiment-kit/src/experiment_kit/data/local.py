"""Where the user's data lies: DATA_DIR, and the folders in it that a data set may be in."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from experiment_kit.errors import UserError


def data_folder(data_dir: str | None) -> Path | None:
    """The folder of local data: the argument, or DATA_DIR; None where neither is given.

    Raises UserError where it is no folder.

    >>> data_folder("/")
    PosixPath('/')
    """
    root = data_dir or os.environ.get("DATA_DIR") or None
    if root is not None and not Path(root).is_dir():
        raise UserError(f"DATA_DIR {root} is not a folder")
    return None if root is None else Path(root)


def locate(
    data_dir: str | None,
    folders: Iterable[str],
    is_it: Callable[[Path], bool],
    hint: str,
    tops: Sequence[str] = ("",),
) -> Path:
    """The first of the folders that is it, in the folder of local data or one of its `tops`.

    Raises UserError where none is, with the hint.

    >>> locate("/", ["no-such-folder", "usr"], Path.is_dir, "make data")
    PosixPath('/usr')
    """
    first, *_ = folders = list(folders)
    root = data_folder(data_dir)
    if root is None:
        raise UserError(f"no {first}: set DATA_DIR to the folder that holds it ({hint})")
    places = (root / f"{top}{folder}" for folder in folders for top in tops)
    if found := next((place for place in places if is_it(place)), None):
        return found
    within = ", ".join(top for top in tops if top)
    where = f"DATA_DIR {root} or its folders {within}" if within else f"DATA_DIR {root}"
    raise UserError(f"no {first} in {where} ({hint})")
