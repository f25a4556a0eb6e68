"""Methods side by side on one data set: trained where they are not, then a table and a page."""

import shlex
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from experiment_kit.errors import UserError
from experiment_kit.launch.overlays import fill_defaults, read_app_defaults
from experiment_kit.launch.work import make
from experiment_kit.tables import Cell

WIDE = 10  # measures; more of them are read downwards, a method a column, to fit a terminal


def compare(
    app: str,
    data: str | None = None,
    backbone: str | None = None,
    methods: Sequence[str] | None = None,
    recipe: str | None = None,
    profile: str | None = None,
    seeds: Sequence[int] = (0,),
    args: str = "",
    jobs: int = 0,
    folder: str = "runs",
) -> None:
    """Train what is missing of each method, then print and draw the methods side by side.

    What is not named is the default of the data set. ARGS go to every run unchanged. The page is
    `<folder>/<app>/<data>-<backbone>/compare.html`.
    """
    defaults = read_app_defaults(app)
    data = data or str(defaults["data"])
    methods = defaults["methods"] if methods is None else methods
    chosen = fill_defaults(app, data, backbone=backbone, recipe=recipe, profile=profile)
    backbone, recipe, profile = (chosen[kind] for kind in ("backbone", "recipe", "profile"))
    if not methods or not seeds:
        raise UserError("name at least one method and one seed to compare")
    from experiment_kit.launch.plan import plan  # lightning and the app: seconds
    from experiment_kit.report.comparison import Comparison  # matplotlib
    from experiment_kit.report.curves import read

    cells = [
        Cell(
            table="", row=method, column=data, app=app, profile=profile or "paper", protocol="",
            seed=seed, data=data, backbone=backbone, method=method, recipe=recipe,
            args=tuple(shlex.split(args)), source="result",
        )
        for seed in seeds for method in methods
    ]  # fmt: skip
    console, runs = Console(), plan(cells, folder)
    failed = make(runs, folder, jobs, console)
    finished = [run for cell in runs if (run := read(cell.method, runs[cell].folder))]
    title = ", ".join(filter(None, (data, backbone, recipe, profile, args)))
    comparison = Comparison(title, list(methods), finished)
    console.print(_table(title, *comparison.lines()))
    path = runs[cells[0]].folder.parents[1] / "compare.html"
    comparison.write(path)
    console.print(f"[bold]{path}[/] has the figures; logs: tensorboard --logdir {path.parent}")
    if failed:
        raise UserError(f"{failed} runs failed; the others are in the table")


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    if len(head) > WIDE:
        head, *rows = zip(head, *rows, strict=True)
    table = Table(title=title, box=box.SIMPLE)
    for name in head:
        first = name == head[0]
        table.add_column(name, justify="left" if first else "right", no_wrap=first)
    for row in rows:
        table.add_row(*row)
    return table
