"""`python -m attention_sequence.generate {listops,pathfinder} --out=DIR --count=.. --seed=0`.

Both write what Long Range Arena released, in its layout: files of either origin serve. They do
nothing where it is there, use all cores unless `--workers` says otherwise, and give the same files
however many work. What was interrupted is not seen; called again, pathfinder continues it.

listops: `DIR/listops-1000/basic_{train,val,test}.tsv`, 96,000, 2,000 and 2,000 trees, or `--count`
in those shares.

pathfinder: `DIR/pathfinder32/curv_contour_length_14/{imgs,metadata}/`, 200,000 images or `--count`,
unsplit; `--contour_length` of 9 is intermediate, and 6 is easy, `curv_baseline`.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from experiment_kit.errors import UserError
from experiment_kit.sentences import told
from jsonargparse import auto_cli

from attention_sequence.generate import folder
from attention_sequence.generate import listops as trees
from attention_sequence.generate import pathfinder as pictures


def listops(out: str = "", count: int = 100_000, seed: int = 0, workers: int = 0) -> None:
    """Draw ListOps: count trees in all; out is DATA_DIR by default, workers all cores."""
    _at_least(count=(count, 50), seed=(seed, 0), workers=(workers, 0))
    place = _out(out)
    _tell(trees.write(place, count, seed, workers), place / "listops-1000")


def pathfinder(
    out: str = "",
    count: int = 200_000,
    seed: int = 0,
    workers: int = 0,
    contour_length: int = 14,
) -> None:
    """Draw Pathfinder32: count images; out is DATA_DIR by default, workers all cores."""
    _at_least(
        count=(count, 1), seed=(seed, 0), workers=(workers, 0), contour_length=(contour_length, 3)
    )
    place = _out(out)
    new = pictures.write(place, count, seed, workers, contour_length)
    _tell(new, pictures.place(place, contour_length))


def _at_least(**numbers: tuple[int, int]) -> None:
    for name, (number, least) in numbers.items():
        if number < least:
            raise UserError(f"--{name} must be {least} or more, not {number}")


def _out(out: str) -> Path:
    if not (place := out or os.environ.get("DATA_DIR")):
        raise UserError("set DATA_DIR, or give --out: the folder that the data is to go to")
    return Path(place)


def _tell(new: bool, place: Path) -> None:
    if new:
        print(f"{place} is made")
    elif folder.theirs(place):
        print(f"{place} is there, not made by this command; nothing to do")
    else:
        print(f"{place} is there; nothing to do")


def main() -> None:
    """Run the command line; an interrupt, also by SIGTERM, leaves no half data under its name."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    commands: Any = {"listops": listops, "pathfinder": pathfinder}
    try:
        with told():
            auto_cli(commands, as_positional=False, exit_on_error=False)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
