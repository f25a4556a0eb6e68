"""`python -m attention_sequence.generate {listops,pathfinder} --out=DIR --count=.. --seed=0`.

Both write a data set of the Long Range Arena in the layout of its release, so that either can be
used. They leave existing data alone, use all cores unless `--num_workers` is given, and write the
same files for any number of workers. Incomplete data has another name; called again, pathfinder
continues it.

listops: `DIR/listops-1000/basic_{train,val,test}.tsv`, 96,000, 2,000 and 2,000 trees, or `--count`
in those proportions.

pathfinder: `DIR/pathfinder32/curv_contour_length_14/{imgs,metadata}/`, 200,000 images or `--count`,
unsplit; `--contour_length=9` is intermediate, and 6 is easy, `curv_baseline`.
"""

import os
from pathlib import Path
from typing import Any

from experiment_kit.errors import UserError, exit_on_signal, exit_on_user_error
from jsonargparse import auto_cli

from attention_sequence.generate import listops as listops_files
from attention_sequence.generate import pathfinder as pathfinder_files


def listops(out: str = "", count: int = 100_000, seed: int = 0, num_workers: int = 0) -> None:
    """Draw ListOps: `count` trees in all; out is DATA_DIR by default, num_workers all cores."""
    _check_at_least(count=(count, 50), seed=(seed, 0), num_workers=(num_workers, 0))
    root = _find_out(out)
    is_new = listops_files.write_dataset(root, count, seed, num_workers)
    _report(is_new, root / "listops-1000")


def pathfinder(
    out: str = "",
    count: int = 200_000,
    seed: int = 0,
    num_workers: int = 0,
    contour_length: int = 14,
) -> None:
    """Draw Pathfinder32: `count` images; out is DATA_DIR by default, num_workers all cores."""
    _check_at_least(count=(count, 1), seed=(seed, 0), num_workers=(num_workers, 0))
    _check_at_least(contour_length=(contour_length, 3))
    root = _find_out(out)
    is_new = pathfinder_files.write_dataset(root, count, seed, num_workers, contour_length)
    _report(is_new, pathfinder_files.dataset_folder(root, contour_length))


def _check_at_least(**arguments: tuple[int, int]) -> None:
    for name, (value, low) in arguments.items():
        if value < low:
            raise UserError(f"--{name} must be at least {low}, got {value}")


def _find_out(out: str) -> Path:
    if not (root := out or os.environ.get("DATA_DIR")):
        raise UserError("set DATA_DIR, or give --out: the folder to write the data into")
    return Path(root)


def _report(is_new: bool, folder: Path) -> None:
    print(f"{folder} is complete" if is_new else f"{folder} exists; nothing to do")


def main() -> None:
    """Run the command line; an interrupt, also by SIGTERM, leaves no incomplete data set."""
    commands: Any = {"listops": listops, "pathfinder": pathfinder}
    with exit_on_signal(), exit_on_user_error():
        auto_cli(commands, as_positional=False, exit_on_error=False)


if __name__ == "__main__":
    main()
