"""The three files of a published table: numbers, documentation, and a page with figures."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from filelock import FileLock

from experiment_kit.runs import write_atomically
from experiment_kit.tables.paper import PaperTable
from experiment_kit.tables.render import markdown
from experiment_kit.tables.results import (
    Measurement,
    aggregate,
    arrange,
    merge,
    read_csv,
    write_csv,
)
from experiment_kit.tables.spec import TableSpec


def publish(
    spec: TableSpec, paper: PaperTable, measurements: Iterable[Measurement], out_dir: Path | str
) -> dict[str, Path]:
    """Write `<table>.csv`, `.md` and `.html`, united with what other machines measured.

    Figures are drawn from the run folders of the table that this machine has.
    """
    from experiment_kit.report import page  # matplotlib is slow, and only this needs it

    paths = {kind: Path(out_dir) / f"{spec.table}.{kind}" for kind in ("csv", "md", "html")}
    new = aggregate(spec, paper, measurements)
    Path(out_dir).mkdir(parents=True, exist_ok=True)
    with FileLock(f"{paths['csv']}.lock"):  # two tables at once must not lose each other's cells
        frame = arrange(merge(read_csv(paths["csv"]), new), spec, paper)
        write_csv(paths["csv"], frame, spec.decimals(paper))
    write_atomically(paths["md"], markdown(frame, paper, spec))
    page.write(paths["html"], spec, paper, frame, run_folders(frame))
    return paths


def run_folders(frame: pd.DataFrame) -> dict[str, list[Path]]:
    """Return the run folders of each row that exist here."""
    folders: dict[str, list[Path]] = defaultdict(list)
    for row, runs in zip(frame["row"], frame["run"], strict=True):
        here = (Path(run) for run in runs.split() if Path(run).is_dir())
        folders[row] += [run for run in here if run not in folders[row]]  # columns share runs
    return dict(folders)
