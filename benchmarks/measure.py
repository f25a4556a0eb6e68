"""Functions of all benchmarks: time, peak memory, growth with length, and the machine."""

import math
import platform
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from experiment_kit.environment import describe_environment

Step = Callable[[], Any]
Clock = Callable[[], float]

# each peak is measured in a new process, forked from one that has only imported libraries
_FRESH = get_context("forkserver")
_FRESH.set_forkserver_preload(["attention_core", "timm"])


class Timing(NamedTuple):
    """Seconds of one run: the best of all rounds, and the median, which other load raises."""

    best: float
    median: float


def select_clock(device: str) -> Clock:
    """Select CPU time, which other load changes little; on a GPU, wall time after all kernels."""
    if device == "cpu":
        return time.process_time

    def read_synchronized() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return read_synchronized


def time_step(step: Step, clock: Clock) -> float:
    """Run a step once, and return its seconds."""
    began = clock()
    step()
    return clock() - began


def measure_steps(
    steps: Mapping[str, Step], device: str, seconds: float, min_rounds: int = 2
) -> dict[str, Timing]:
    """Time steps in turn, by the clock of the device."""
    clock = select_clock(device)
    runs = {name: partial(time_step, step, clock) for name, step in steps.items()}
    return interleave_runs(runs, seconds, min_rounds)


def interleave_runs(
    runs: Mapping[str, Callable[[], float]], seconds: float, min_rounds: int = 2
) -> dict[str, Timing]:
    """Repeat runs that return their seconds in turn, so that other load slows all of them alike.

    The first round, in which libraries warm up, counts for the median only if it is the only one.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.monotonic() + seconds
    while time.monotonic() < end or min(map(len, times.values())) < min_rounds:
        for name, run in runs.items():
            times[name].append(run())
    return {name: Timing(min(t), statistics.median(t[1:] or t)) for name, t in times.items()}


def format_noise(timings: Mapping[str, Timing]) -> str:
    """Format the largest excess of a median over the best time."""
    return f"{max(t.median / t.best for t in timings.values()) - 1:.0%}"


def _read_resident_bytes() -> float:
    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _measure_peak_here(
    make: Callable[..., Step], small: tuple[Any, ...], args: tuple[Any, ...]
) -> float:
    torch.set_num_threads(1)
    make(*small)()  # libraries take their workspace at the first call
    step = make(*args)
    if "cuda" in args:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    before = _read_resident_bytes()
    step()
    return (_read_resident_bytes() - before) / 2**20


def measure_peak(make: Callable[..., Step], small: tuple[Any, ...], args: tuple[Any, ...]) -> float:
    """Return the peak MiB of one run of `make(*args)` in a new process, without its operands."""
    with ProcessPoolExecutor(1, mp_context=_FRESH) as process:
        return process.submit(_measure_peak_here, make, small, args).result()


def compare_with_aim(value: float, most: float | None = None, least: float | None = None) -> str:
    """Format a number, with "met" or "missed" where there is an aim.

    >>> [compare_with_aim(2.1, **aim) for aim in ({'most': 2.2}, {'least': 3}, {})]
    ['2.10 met', '2.10 missed', '2.10']
    """
    if most is None and least is None:
        return f"{value:.2f}"
    met = (most is None or value <= most) and (least is None or value >= least)
    return f"{value:.2f} {'met' if met else 'missed'}"


def fit_exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Fit p of values ~ sizes^p by least squares of the logarithms.

    >>> fit_exponent([1, 2, 4], [3.0, 12.0, 48.0])
    2.0
    """
    return statistics.linear_regression(
        [math.log(n) for n in sizes], [math.log(value) for value in values]
    ).slope


def format_growth(sizes: Sequence[int], values: Sequence[float], most: float | None = None) -> str:
    """Format the exponent of the sizes from 1024 on; below, fixed costs hide the growth."""
    long = [(n, value) for n, value in zip(sizes, values, strict=False) if n >= 1024]
    return compare_with_aim(fit_exponent(*zip(*long, strict=True)), most) if len(long) > 1 else "-"


def describe_machine(device: str) -> dict[str, str]:
    """Describe what a time depends on: processor, cores, threads, versions, commit."""
    facts = describe_environment()
    commit = (facts["commit"] or "unknown")[:10] + (" (modified)" if facts["modified"] else "")
    name = torch.cuda.get_device_name() if device == "cuda" else _read_processor_name()
    return {"date": time.strftime("%Y-%m-%d"), "commit": commit} | {
        "device": f"{name}, {facts['machine']}, {torch.get_num_threads()} thread(s)",
        "torch": facts["versions"]["torch"],
        "python": facts["python"],
    }


def _read_processor_name() -> str:
    listing = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", listing.read_text()) if listing.exists() else None
    return found[1] if found else platform.processor()
