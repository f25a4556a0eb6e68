"""Checks of the launcher's options before anything is parsed, trained or written."""

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Literal

from attention_core.checks import MAX_ORDER

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


def name_arguments(command: Callable[..., Any], arguments: Sequence[str]) -> list[str]:
    """Give their names to arguments by position; `files` takes all that are left.

    Options with a dot are an app's own, and are added to `--args` where the command has that.
    Refuses an option that the command does not have, an abbreviation among them, a value too many,
    an argument that is given by position and by name, and null, which could be read as "none" or
    as "all".

    >>> def train(app, data="jv", jobs=0, args=""): ...
    >>> name_arguments(train, ["sequence", "--jobs", "2", "heartbeat", "--model.filter.K=5"])
    ['--app=sequence', '--jobs=2', '--data=heartbeat', '--args=--model.filter.K=5']
    >>> name_arguments(train, ["sequence", "--job=2"])
    Traceback (most recent call last):
    ...
    experiment_kit.errors.UserError: there is no option '--job'; there are: --app, --data, --jobs, \
--args
    """
    parameters = signature(command).parameters
    options = [f"--{name}" for name in parameters]
    flags = [f"--{name}" for name, given in parameters.items() if given.annotation is bool]
    # a flag needs no value
    given = list(zip(arguments, [*arguments, ""][1:], strict=True))
    arguments = [
        f"{argument}=true" if argument in flags and after not in ("true", "false") else argument
        for argument, after in given
    ]
    free, left = _iterate_free(options), iter(arguments)
    by_name = {argument.partition("=")[0] for argument in arguments}
    named: list[str] = []
    own: list[str] = []
    for argument in left:
        if argument in ("-h", "--help"):
            return [argument]
        if not re.match("--?[a-zA-Z]", argument):
            option = next(free, "")
            if option in by_name:
                raise UserError(f"{option} is given twice: by its name, and as {argument!r}")
            argument = f"{option}={argument}"
        name, sign, value = argument.partition("=")
        is_own = "--args" in options and re.fullmatch(r"--\w+(\.\w+)+\+?", name)
        if not name:
            raise UserError(
                f"there is no option left for {value!r}; there are: {', '.join(options)}"
            )
        if name not in options and not is_own:
            raise UserError(f"there is no option {name!r}; there are: {', '.join(options)}")
        value = value if sign else next(left, "null")
        if value.partition("=")[0] in options or (value == "null" and not (is_own and sign)):
            raise UserError(f"{name} has no value: name one, or leave the option out")
        (own if is_own else named).append(f"{name}={value}")
    if own:
        named.append(f"--args={shlex.join(own)}")
    for option in ("--args", "--grid"):  # may be given several times
        named = _join_texts(named, f"{option}=")
    return named if "--files" in by_name else _join_files(named)


def _iterate_free(options: Sequence[str]) -> Iterator[str]:
    for option in options:
        yield option
        while option == "--files":
            yield option


def _join_files(named: list[str]) -> list[str]:
    names = [argument.removeprefix("--files=") for argument in named if argument[:8] == "--files="]
    rest = [argument for argument in named if argument[:8] != "--files="]
    return [*rest, f"--files={json.dumps(names)}"] if names else rest


def _join_texts(named: list[str], start: str) -> list[str]:
    texts = [argument.removeprefix(start) for argument in named if argument.startswith(start)]
    rest = [argument for argument in named if not argument.startswith(start)]
    return [*rest, start + " ".join(filter(None, texts))] if texts else rest


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse no seed, one seed twice, and a number that seeds no generator."""
    check_list("seeds", seeds)
    if wrong := [seed for seed in seeds if not 0 <= seed <= LARGEST_SEED]:
        raise UserError(f"--seeds: a seed is 0 to {LARGEST_SEED}, got {wrong[0]}")


def check_list(option: str, values: Sequence[Any] | None) -> None:
    """Refuse an empty list and one that names something twice; None is an option left out."""
    if values is None:
        return
    if not values:
        raise UserError(f"--{option}=[] names none: name at least one, or leave the option out")
    if twice := [value for value in values if values.count(value) > 1]:
        raise UserError(f"--{option} names {twice[0]} twice")


def check_jobs(jobs: int) -> None:
    """Refuse a negative number of processes, which would never start, and one beyond machines."""
    if not 0 <= jobs <= MAX_ORDER:
        allowed = f"0, for one a core, or a number of processes up to {MAX_ORDER}"
        raise UserError(f"--jobs={jobs}: expected {allowed}")


def make_folders(**options: str) -> None:
    """Make the folders that options name, so that training does not end where nothing is kept."""
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
