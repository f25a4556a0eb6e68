"""Time, peak memory, growth and machine: what every benchmark here measures with."""

import math
import platform
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from experiment_kit.run import describe_environment

Step = Callable[[], Any]
Clock = Callable[[], float]

# fresh processes for peak memory, forked from one that has imported torch and done nothing else
_FRESH = get_context("forkserver")
_FRESH.set_forkserver_preload(["attention_core"])


class Timing(NamedTuple):
    """Seconds of one run: the best, which is the machine's, and the median, which is the day's."""

    best: float
    median: float


def clock(device: str) -> Clock:
    """CPU time, which other processes lengthen little; on a GPU wall time, all kernels done."""
    if device == "cpu":
        return time.process_time

    def synchronised() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return synchronised


def timed(step: Step, clock: Clock) -> Callable[[], float]:
    """A run of `step` that returns its seconds."""

    def run() -> float:
        began = clock()
        step()
        return clock() - began

    return run


def interleave(
    runs: Mapping[str, Callable[[], float]], seconds: float, least: int = 2
) -> dict[str, Timing]:
    """Take turns for so many seconds, at least `least` rounds: what slows one slows all.

    The first round, in which libraries warm up, counts for the median only if it is the only one.
    """
    took: dict[str, list[float]] = {name: [] for name in runs}
    end = time.monotonic() + seconds
    while time.monotonic() < end or min(map(len, took.values())) < least:
        for name, run in runs.items():
            took[name].append(run())
    return {
        name: Timing(min(times), statistics.median(times[1:] or times))
        for name, times in took.items()
    }


def noise(timings: Mapping[str, Timing]) -> str:
    """How far the medians lie above the best, in the worst of the cases."""
    return f"{max(t.median / t.best for t in timings.values()) - 1:.0%}"


def _resident() -> float:
    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _peak(make: Callable[..., Step], small: tuple[Any, ...], args: tuple[Any, ...]) -> float:
    torch.set_num_threads(1)
    make(*small)()  # libraries take their workspace at the first call
    step = make(*args)
    if "cuda" in args:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    before = _resident()
    step()
    return (_resident() - before) / 2**20


def peak(make: Callable[..., Step], small: tuple[Any, ...], args: tuple[Any, ...]) -> float:
    """MiB that one run of `make(*args)` takes at its peak, operands apart, in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=_FRESH) as process:
        return process.submit(_peak, make, small, args).result()


def judge(value: float, most: float | None = None, least: float | None = None) -> str:
    """A number and whether it is where we want it; bare where there is no aim.

    >>> judge(2.1, most=2.2), judge(2.1, least=3), judge(2.1)
    ('2.10 met', '2.10 missed', '2.10')
    """
    if most is None and least is None:
        return f"{value:.2f}"
    met = (most is None or value <= most) and (least is None or value >= least)
    return f"{value:.2f} {'met' if met else 'missed'}"


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """The p of values ~ sizes^p, by least squares of the logarithms.

    >>> exponent([1, 2, 4], [3.0, 12.0, 48.0])
    2.0
    """
    return statistics.linear_regression(
        [math.log(n) for n in sizes], [math.log(value) for value in values]
    ).slope


def growth(sizes: Sequence[int], values: Sequence[float], most: float | None = None) -> str:
    """The judged exponent of sizes from 1024 on, where growth is no longer overhead."""
    long = [(n, value) for n, value in zip(sizes, values, strict=False) if n >= 1024]
    return judge(exponent(*zip(*long, strict=True)), most) if len(long) > 1 else "-"


def machine(device: str) -> dict[str, str]:
    """What a number depends on besides the code: processor, cores, threads, versions, commit."""
    facts = describe_environment()
    commit = (facts["commit"] or "unknown")[:10] + (" (modified)" if facts["modified"] else "")
    name = torch.cuda.get_device_name() if device == "cuda" else _processor()
    return {"date": time.strftime("%Y-%m-%d"), "commit": commit} | {
        "device": f"{name}, {facts['machine']}, {torch.get_num_threads()} thread(s)",
        "torch": facts["versions"]["torch"],
        "python": facts["python"],
    }


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", listing.read_text()) if listing.exists() else None
    return found[1] if found else platform.processor()
