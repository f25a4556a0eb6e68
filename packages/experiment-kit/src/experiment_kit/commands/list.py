"""The command that lists experiments and tables, and whether their data is here."""

from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiment_kit.app_files import find_table_specs, list_apps
from experiment_kit.errors import check_name
from experiment_kit.launch.overlays import KINDS, fill_defaults, list_overlays
from experiment_kit.papers.values import load_table


def list_experiments(name: str = "") -> None:
    """List experiments and tables; of one app or paper, as in `list vision`, also their data.

    Args:
        name: an app, such as vision, or a paper, such as gfsa; by default all apps, without data
    """
    console = Console(soft_wrap=True)
    tables_by_app = {app: [path.stem for path in find_table_specs(app)] for app in list_apps()}
    paper_of = {table: load_table(table).paper for table in chain(*tables_by_app.values())}
    papers, name = {*paper_of.values()}, name.replace("-", "_")
    if name:
        check_name(name, [*tables_by_app, *sorted(papers)], "app or paper")
    for app, tables in tables_by_app.items():
        if name in papers:
            tables = [table for table in tables if paper_of[table] == name]
        elif name not in (app, ""):
            continue
        if not name:
            console.print(f"[bold]{app}[/] tables: {', '.join(tables)}")
        if name not in papers:
            for kind in (*KINDS, "grid"):
                console.print(f"[bold]{app}[/] {kind}: {', '.join(list_overlays(app, kind))}")
        if name and tables:
            _print_places(console, app, tables, with_data=name == app)
    if not name:
        console.print("`list APP` and `list PAPER` say whether the data is here.")


def _print_places(console: Console, app: str, tables: Iterable[str], with_data: bool) -> None:
    # here, since they import the app, which takes seconds
    from experiment_kit.launch.plan import find_data
    from experiment_kit.papers.spec import find_spec

    places = {data: find_data(app, data) for data in list_overlays(app, "data")}
    listing = Table("data", "defaults", "", "where", title=f"{app}: data", title_justify="left")
    for data, place in places.items():
        here = "[green]here[/]" if isinstance(place, Path) else "absent"
        defaults = " ".join(filter(None, fill_defaults(app, data).values()))
        listing.add_row(data, defaults, here, escape(str(place)))
    if with_data:
        console.print(listing, soft_wrap=False)
    listing = Table("table", "caption", "data here", title=f"{app}: tables")
    for name in tables:
        spec = find_spec(name)
        planned = (cell.experiment for cell in spec.list_cells(seeds=[0]))
        named = {e.data for e in planned if e.is_trained and e.app == app}
        count = sum(isinstance(places[data], Path) for data in named)
        listing.add_row(name, spec.paper.caption, f"{count} of {len(named)}")
    console.print(listing, soft_wrap=False)
