"""Worker processes that compute results in order, and their progress bar."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from multiprocessing import get_context
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")


def map_in_order(
    function: Callable[[int], T], numbers: Iterable[int], num_workers: int
) -> Iterator[T]:
    """Yield function(number) in order, computed ahead by `num_workers` processes, 0 for all cores.

    The numbers may be endless: a few per worker are taken ahead. One worker is this process itself.
    """
    num_workers = num_workers or len(os.sched_getaffinity(0))
    if num_workers == 1:
        yield from map(function, numbers)
        return
    context = get_context("forkserver")  # a fork would not copy the thread of the progress bar
    context.set_forkserver_preload([f"{__package__}.listops", f"{__package__}.pathfinder"])
    # an interrupt is for this process alone, which ends the workers
    ignore_interrupts = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    numbers = iter(numbers)
    with ProcessPoolExecutor(num_workers, context, ignore_interrupts) as pool:
        while block := list(islice(numbers, 4 * num_workers)):
            yield from pool.map(function, block)


def show_progress(steps: Iterable[T], title: str, total: int) -> Iterable[T]:
    """Show a progress bar on a terminal's standard error."""
    console: Any = Console(stderr=True)
    return track(steps, title, total, console=console, disable=not console.is_terminal)
