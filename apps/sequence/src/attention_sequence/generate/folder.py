"""A folder of generated data: it has its name once it is complete, and records its options."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from experiment_kit.errors import UserError

RECORD = "generated.json"


def generate_folder(
    folder: Path, options: Mapping[str, int], names: Iterable[str], write: Callable[[Path], None]
) -> bool:
    """Call write(folder.part) and rename it to the folder; return False if the folder exists.

    An interrupted call leaves `folder.part`, from which the next one goes on. Raises UserError if
    either was generated with other options, or if a folder lacks one of the names.
    """
    from experiment_kit.run import hold_lock, write_folder_once  # torch: not for workers

    folder.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder.with_name(f"{folder.name}.lock")):
        if folder.exists():
            _check_options(folder, options, "remove it to generate another")
            if absent := [name for name in names if not (folder / name).exists()]:
                raise UserError(f"{folder} lacks {absent[0]}: complete it or remove it")
            return False
        unfinished = folder.with_name(f"{folder.name}.part")
        record = json.dumps(options) + "\n"
        write_folder_once(unfinished, lambda new: (new / RECORD).write_text(record))
        _check_options(unfinished, options, "finish it with these, or remove it")
        write(unfinished)
        unfinished.rename(folder)
        return True


def is_official_release(folder: Path) -> bool:
    """Return True for a folder that this package did not generate."""
    return not (folder / RECORD).exists()


def _check_options(folder: Path, options: Mapping[str, int], remedy: str) -> None:
    if is_official_release(folder):
        return
    recorded = json.loads((folder / RECORD).read_text())
    if recorded != options:
        flags = " ".join(f"--{name}={value}" for name, value in recorded.items())
        raise UserError(f"{folder} was generated with {flags}: {remedy}")
