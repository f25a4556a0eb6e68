"""Apply a function to many numbers in worker processes, and keep the order of the numbers."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")


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
