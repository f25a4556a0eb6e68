"""Measure the claims of the project on small models, and publish what comes out: `make evidence`.

Each measurement is kept in `store` as soon as it is made, so that an interrupted command goes on
where it was; a new command makes only those that are missing.
"""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, get_args

from experiment_kit.errors import UserError, exit_on_signal, exit_on_user_error
from jsonargparse import auto_cli

from benchmarks.evidence.publish import publish_results, read_page
from benchmarks.evidence.runner import Row, run_units, show_progress
from benchmarks.evidence.settings import QUICK, Settings

Part = Literal["stacks", "signs", "spectra", "minilm", "task"]
PARTS: tuple[Part, ...] = get_args(Part)


def measure_evidence(
    out: str = "docs",
    store: str = "runs/evidence",
    parts: Sequence[Part] = PARTS,
    jobs: int = 0,
    quick: bool = False,
) -> None:
    """Measure, then write CSV files, the tables of evidence.md, and its figures.

    Args:
        out: folder of evidence.md, figures/ and results/evidence/
        store: folder of the finished measurements; delete it to measure again
        parts: what to measure; the page and the figures need all
        jobs: processes; 0 is one for each core
        quick: take toy sizes, to see that it works; writes to STORE/quick in place of docs
    """
    if jobs < 0:
        raise UserError(f"jobs is a number of processes, or 0 for one a core, got {jobs}")
    if not parts:
        raise UserError(f"parts is empty: name at least one of {', '.join(PARTS)}")
    settings = QUICK if quick else Settings()
    folder = Path(store, "quick") if quick and out == "docs" else Path(out)
    page = read_page(folder)  # before the measurements, which take minutes
    began = time.monotonic()
    results, seconds = measure_parts(settings, parts, Path(store), jobs or os.cpu_count() or 1)
    written = publish_results(results, seconds, settings, folder, page)
    print(f"{(time.monotonic() - began) / 60:.1f} minutes; wrote", *written, sep="\n  ")


def measure_parts(
    settings: Settings, parts: Sequence[Part], store: Path, jobs: int
) -> tuple[dict[str, list[Row]], dict[str, float]]:
    """Return the rows of each part, and the CPU seconds that they took."""
    from benchmarks.evidence import minilm, signs, spectra, stacks, task

    simple = {
        "stacks": (stacks.measure_stack, stacks.list_units),
        "signs": (signs.iterate_update, signs.list_units),
        "spectra": (spectra.measure_spectrum, spectra.list_units),
        "minilm": (minilm.measure_layers, minilm.list_units),
    }
    results: dict[str, list[Row]] = {}
    seconds: dict[str, float] = {}
    with open_pool(jobs) as pool, show_progress() as progress:
        for part in parts:
            if part in simple:
                measure, list_units = simple[part]
                units = list_units(getattr(settings, part))
                found = run_units(measure, units, store / part, pool, progress)
                results[part], seconds[part] = found
                continue
            units = task.list_trials(settings.task)
            trials, first = run_units(task.train_namer, units, store / "trials", pool, progress)
            units = task.list_runs(settings.task, trials)
            runs, second = run_units(task.train_namer, units, store / part, pool, progress)
            results |= {"trials": trials, part: runs}
            seconds[part] = first + second
    return results, seconds


def open_pool(jobs: int) -> AbstractContextManager[ProcessPoolExecutor | None]:
    """Open the processes of all parts, which import torch once; one job needs none."""
    if jobs == 1:
        return nullcontext()
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    with exit_on_user_error(), exit_on_signal():
        auto_cli(
            measure_evidence,
            None if arguments is None else list(arguments),
            as_positional=False,
            exit_on_error=False,
            prog="python -m benchmarks.evidence",
        )


if __name__ == "__main__":
    main()
