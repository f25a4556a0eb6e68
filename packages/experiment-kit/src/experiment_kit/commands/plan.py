"""The command that plans tables: cells, runs, what is missing, and the FLOPs of the runs."""

from pathlib import Path
from typing import Any

from rich.console import Console

from experiment_kit.commands.table import CellOptions
from experiment_kit.errors import UserError
from experiment_kit.launch.options import make_folders
from experiment_kit.pages.tables import print_page_table
from experiment_kit.papers import cost
from experiment_kit.papers.spec import find_tables


def plan_tables(name: str, folder: str = "runs", **options: Any) -> None:
    """Print what a table, the tables of a paper, or all of them need, and the FLOPs of their runs.

    The multiply-adds of a model are counted once, without computing, and kept in
    `<folder>/macs.json`. Times here are of finished runs of the same config. Nothing is trained.

    Args:
        name: a table, such as agf-table-1; gfsa, attnscale, agf or record_straight for all tables
            of a paper; or all
        folder: the folder of the runs and of the counts
        options: those on the cells
    """
    console = Console()
    chosen = CellOptions(**options)
    make_folders(folder=folder)
    specs = find_tables(name)
    if len(specs) > 1 and (chosen.rows or chosen.columns):
        raise UserError("--rows and --columns choose from one table: name it")
    cells = {spec.table: spec.list_cells(**chosen.names) for spec in specs}
    count = sum(map(len, cells.values()))
    tables = f"{len(specs)} table{'s' * (len(specs) != 1)}"
    console.print(f"{name}: {tables}, {count} cells; planning their runs", highlight=False)
    runs = cost.plan_costs(cells, Path(folder), console)
    for listing in cost.tabulate_costs(runs):
        print_page_table(listing, console)
    console.print(cost.EXPLANATION, highlight=False)
    for sentence in cost.list_missing({*runs.loc[~runs["is_done"], "experiment"]}):
        console.print(sentence, highlight=False, soft_wrap=True)
