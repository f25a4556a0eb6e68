"""Apply a function to many numbers in worker processes, and keep the order of the numbers."""

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


def map_in_order(
    function: Callable[[int], T], numbers: Iterable[int], num_workers: int
) -> Iterator[T]:
    """Yield function(number) in order, computed ahead by `num_workers` processes, 0 for all cores.

    The numbers may be endless: a few per worker are taken ahead. One worker is this process itself.

    >>> list(map_in_order(abs, [-2, 1], num_workers=1))
    [2, 1]
    """
    num_workers = num_workers or _count_cores()
    if num_workers == 1:
        yield from map(function, numbers)
        return
    # not forked: a fork would not copy the thread of the progress bar
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_workers, context, _ignore_interrupts) as pool:
        try:
            yield from _map_ahead(pool, function, iter(numbers), 2 * num_workers)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _map_ahead(
    pool: ProcessPoolExecutor, function: Callable[[int], T], numbers: Iterator[int], most: int
) -> Iterator[T]:
    waiting: deque[Future[T]] = deque()
    for number in islice(numbers, most):
        waiting.append(pool.submit(function, number))
    while waiting:
        yield waiting.popleft().result()
        for number in islice(numbers, 1):
            waiting.append(pool.submit(function, number))


def _count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent heeds it


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
