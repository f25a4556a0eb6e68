"""What the make targets call: one experiment, a table, the list of both."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.markup import escape

from experiment_kit.errors import UserError
from experiment_kit.launch import compose
from experiment_kit.launch.listing import whereabouts
from experiment_kit.launch.overlays import fill_defaults, overlay_arguments, read_app_defaults
from experiment_kit.launch.work import make
from experiment_kit.tables import Cell, TableSpec, load, load_spec, measure, publish, read_csv
from experiment_kit.tables import terminal as show
from experiment_kit.tables.origin import check_unmixed, planned


def run(
    app: str,
    data: str | None = None,
    backbone: str | None = None,
    method: str = "plain",
    recipe: str | None = None,
    profile: str | None = None,
    seed: int = 0,
    args: str = "",
    action: Literal["fit", "validate", "test", "predict"] = "fit",
) -> None:
    """Run one `action` of Lightning's command line on an experiment named by its overlays.

    Overlays that are not named are the defaults of the data set. ARGS go to the app unchanged.
    """
    data = data or read_app_defaults(app)["data"]
    chosen = fill_defaults(app, data, backbone=backbone, recipe=recipe, profile=profile)
    extra = [f"--seed_everything={seed}", *shlex.split(args)]
    arguments = overlay_arguments(app, extra, data=data, method=method, **chosen)
    os.execv(sys.executable, [sys.executable, *compose.command(app, action, arguments)])


def table(
    table: str,
    profile: str = "paper",
    protocol: str = "validation",
    seeds: Sequence[int] = (0, 1, 2),
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    jobs: int = 0,
    out: str = "docs/results",
    folder: str = "runs",
    train: bool = True,
) -> None:
    """Make the cells of a paper's table that are missing, then print and publish it.

    Cells are processes of their own; what is finished is left alone and what was interrupted
    resumes. Cells whose data is not here are left out; what a model costs needs none. `train:
    false` renders what is there.
    """
    from experiment_kit.launch.plan import plan  # lightning and the app: seconds

    console = Console()
    spec, paper = _spec(table), load(table)
    rows = rows or _rows(spec, train, console)
    cells = _with_data(spec.cells(profile, protocol, seeds, rows, columns), console)
    if train:
        _check_unmixed(spec, cells, Path(out))
    runs = plan(cells, folder)
    failed = make(runs, folder, jobs, console) if train else 0
    found = [m for cell, run in runs.items() if (m := measure(cell, run.folder))]
    paths = publish(spec, paper, found, out)
    show(read_csv(paths["csv"]), paper, spec, profile, protocol, console, columns)
    console.print(f"[bold]{paths['html']}[/] has the figures; logs: tensorboard --logdir {folder}")
    if failed:
        raise UserError(f"{failed} runs failed; the others are in the table")


def _spec(name: str) -> TableSpec:
    files = {path.stem: path for path in compose.APPS.glob("*/papers/*.yaml")}
    if name not in files:
        raise UserError(f"no table {name!r}; there are: {', '.join(sorted(files)) or 'none'}")
    return load_spec(files[name])


def _rows(spec: TableSpec, train: bool, console: Console) -> list[str]:
    """All rows, but where they are trained not those of random weights beside others."""
    random = [key for key, row in spec.made.items() if train and row.random]
    if random:
        console.print(f"left out: rows of random weights, by --rows alone: {', '.join(random)}")
    return [key for key in spec.made if key not in random]


def _check_unmixed(spec: TableSpec, cells: list[Cell], out: Path) -> None:
    """Refuse before training what `publish` would refuse after it."""
    check_unmixed([*read_csv(out / f"{spec.table}.csv").to_dict("records"), *planned(spec, cells)])


def _with_data(cells: list[Cell], console: Console) -> list[Cell]:
    names = {(cell.app, cell.data) for cell in cells if cell.trained}
    absent = {name: place for name in names if isinstance(place := whereabouts(*name), str)}
    for (_, data), reason in sorted(absent.items()):
        console.print(f"left out: {data}: {escape(reason)}")
    return [c for c in cells if not c.trained or (c.app, c.data) not in absent]
