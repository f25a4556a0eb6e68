"""Which run each cell of a table is, without building a model."""

from collections.abc import Iterable
from importlib import import_module

from experiment_kit.cli import App, AppCLI
from experiment_kit.errors import UserError
from experiment_kit.launch.compose import of_cell
from experiment_kit.runs import Run
from experiment_kit.tables import Cell


def plan(cells: Iterable[Cell], folder: str = "runs") -> dict[Cell, Run]:
    """The run of every cell, by parsing its config as the run itself will.

    Raises UserError where the app is not installed.
    """
    arguments = {cell: ("fit", *of_cell(cell, folder)) for cell in cells}
    located: dict[tuple[str, ...], Run] = {}  # columns that show the same run share it
    clis: dict[str, AppCLI] = {}
    for cell, args in arguments.items():
        if args in located:
            continue
        if cell.app not in clis:
            clis[cell.app] = AppCLI(app(cell.app), [*args], plan=True)
        cli = clis[cell.app]
        cli.config = cli.parser.parse_args([*args])
        located[args] = cli.locate()
    return {cell: located[args] for cell, args in arguments.items()}


def app(name: str) -> App:
    """What an app tells its command line.

    Raises UserError where it is not installed.
    """
    try:
        return import_module(f"attention_{name}.__main__").APP
    except ModuleNotFoundError as error:
        raise UserError(f"{error}: install the app with `pip install -e apps/{name}`") from error
