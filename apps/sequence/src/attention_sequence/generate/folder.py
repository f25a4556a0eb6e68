"""Write generated data: a folder that has its name once it is complete, by worker processes."""

import json
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from experiment_kit.errors import UserError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

RECORD = "generated.json"  # the options of the folder that it is in
T = TypeVar("T")


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


def _check_options(folder: Path, options: Mapping[str, int], remedy: str) -> None:
    if not (folder / RECORD).exists():  # the official release
        return
    recorded = json.loads((folder / RECORD).read_text())
    if recorded != options:
        flags = " ".join(f"--{name}={value}" for name, value in recorded.items())
        raise UserError(f"{folder} was generated with {flags}: {remedy}")


def map_in_order(
    function: Callable[[int], T], numbers: Iterable[int], num_workers: int
) -> Iterator[T]:
    """Yield function(number) in order, computed ahead by `num_workers` processes, 0 for all cores.

    The numbers may be endless: a few per worker are taken ahead. One worker is this process itself.
    """
    if num_workers == 0:
        has_affinity = hasattr(os, "sched_getaffinity")
        num_workers = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    if num_workers == 1:
        yield from map(function, numbers)
        return
    # not forked: a fork would not copy the thread of the progress bar
    context = multiprocessing.get_context("spawn")
    # an interrupt is for this process alone, which ends the workers
    ignore_interrupts = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(num_workers, context, ignore_interrupts) as pool:
        numbers = iter(numbers)
        try:
            waiting = deque(pool.submit(function, n) for n in islice(numbers, 2 * num_workers))
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(pool.submit(function, n) for n in islice(numbers, 1))
        except BaseException:  # calls that have begun may take minutes on a busy machine
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal's standard error; yield the function that advances it."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.advance(task, done)
