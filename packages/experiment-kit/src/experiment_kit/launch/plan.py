"""Which run each cell of a table is, without building a model."""

from collections.abc import Iterable
from importlib import import_module

from experiment_kit.cli import App, AppCLI
from experiment_kit.errors import UserError
from experiment_kit.launch.compose import of_cell
from experiment_kit.runs import Run
from experiment_kit.tables import Cell


def plan(cells: Iterable[Cell], folder: str = "runs") -> dict[Cell, Run]:
    """The run of every cell of one app, by parsing its config as the run itself will.

    Raises UserError where the app is not installed.
    """
    arguments = {cell: ("fit", *of_cell(cell), f"--run.folder={folder}") for cell in cells}
    located: dict[tuple[str, ...], Run] = {}  # columns that show the same run share it
    cli: AppCLI | None = None
    for cell, args in arguments.items():
        if args in located:
            continue
        if cli is None:
            cli = AppCLI(_app(cell.app), [*args], plan=True)
        cli.config = cli.parser.parse_args([*args])
        located[args] = cli.locate()
    return {cell: located[args] for cell, args in arguments.items()}


def _app(name: str) -> App:
    try:
        return import_module(f"attention_{name}.__main__").APP
    except ModuleNotFoundError as error:
        raise UserError(f"{error}: install the app with `pip install -e apps/{name}`") from error
