"""Checks of the launcher's options before anything is parsed, trained or written."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from experiment_kit.errors import UserError

LARGEST_SEED = 2**32 - 1  # numpy takes no larger one


@dataclass(frozen=True)
class EigenvalueOptions:
    """The validation samples on which eigenvalues are measured, a number or all, and the epoch."""

    samples: int | str = 8
    epoch: Literal["best", "last"] = "best"

    def __post_init__(self) -> None:
        is_count = isinstance(self.samples, int) and self.samples >= 1
        if self.samples != "all" and not is_count:
            raise UserError(f"--samples must be at least 1, or all, got {self.samples}")

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of the command that measures them."""
        return f"--samples={self.samples}", f"--epoch={self.epoch}"


def has_options(report: Mapping[str, Any], options: EigenvalueOptions | None) -> bool:
    """Return True if a measurement was made with the options; None stands for any."""
    return options is None or report.get("options") == asdict(options)


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise UserError for an empty list of seeds, a repeated seed, or one out of range."""
    check_list("seeds", seeds)
    if wrong := [seed for seed in seeds if not 0 <= seed <= LARGEST_SEED]:
        raise UserError(f"--seeds: a seed is 0 to {LARGEST_SEED}, got {wrong[0]}")


def check_list(option: str, values: Sequence[Any] | None) -> None:
    """Raise UserError for an empty list or a repeated name; None is an option left out."""
    if values is None:
        return
    if not values:
        raise UserError(f"--{option}=[] names none: name at least one, or leave the option out")
    if twice := [value for value in values if values.count(value) > 1]:
        raise UserError(f"--{option} names {twice[0]} twice")


def check_jobs(jobs: int) -> None:
    """Raise UserError for a negative number of processes."""
    if jobs < 0:
        raise UserError(f"--jobs={jobs}: expected 0, for one a core, or a number of processes")


def make_folders(**options: str) -> None:
    """Make the folders that options name, so that a bad path fails before training."""
    for option, folder in options.items():
        if not folder:
            raise UserError(f"--{option}= is empty: name a folder")
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--{option}={folder} cannot be made: {error.strerror}") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise UserError(f"--{option}={folder} cannot be written: name another folder")


def split_arguments(text: str) -> tuple[str, ...]:
    """Return the arguments for the app in a text, as a shell splits them.

    Raises UserError for an open quotation, and for a seed, which is an option of the launcher.
    """
    try:
        arguments = tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(f"--args={text}: {error}") from error
    if any(argument.startswith("--seed_everything") for argument in arguments):
        raise UserError("--args has --seed_everything: name seeds by the launcher's own option")
    return arguments
