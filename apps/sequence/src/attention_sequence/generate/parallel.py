"""The same function of many numbers, in worker processes; the order is that of the numbers."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")


def ordered(function: Callable[[int], T], numbers: Iterable[int], workers: int) -> Iterator[T]:
    """Yield function(number) in order, computed ahead by `workers` processes, 0 for all cores.

    The numbers may be endless: a few per worker are taken ahead. One worker is this process.

    >>> list(ordered(abs, [-2, 1], workers=1))
    [2, 1]
    """
    workers = workers or _cores()
    if workers == 1:
        yield from map(function, numbers)
        return
    # spawned: a fork would copy the threads of a progress bar half
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _ignore_interrupts) as pool:
        try:
            yield from _ahead(pool, function, iter(numbers), 2 * workers)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _ahead(
    pool: ProcessPoolExecutor, function: Callable[[int], T], numbers: Iterator[int], most: int
) -> Iterator[T]:
    waiting: deque[Future[T]] = deque()
    for number in islice(numbers, most):
        waiting.append(pool.submit(function, number))
    while waiting:
        yield waiting.popleft().result()
        for number in islice(numbers, 1):
            waiting.append(pool.submit(function, number))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, and stops giving out work


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal's standard error; gives the function that advances it."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.advance(task, done)
