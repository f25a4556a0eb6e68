"""The command that lists experiments and tables, and whether their data is here."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiment_kit.app_files import find_table_specs, list_apps
from experiment_kit.errors import UserError
from experiment_kit.launch.overlays import fill_defaults, list_overlays
from experiment_kit.launch.plan import count_samples, find_data
from experiment_kit.papers.spec import load_spec
from experiment_kit.papers.values import list_tables, load_table


def list_experiments() -> None:
    """List every experiment and table, and whether the data that each needs is here.

    Data whose counts differ from those that its paper prints is named.
    """
    console = Console()
    for app in list_apps():
        places = {data: find_data(app, data) for data in list_overlays(app, "data")}
        for kind in ("backbone", "method", "recipe", "profile", "protocol", "grid"):
            if names := list_overlays(app, kind):
                console.print(f"[bold]{app}[/] {kind}: {', '.join(names)}")
        console.print(_list_data(app, places), _list_tables(app, places))
        for sentence in list_differences(app, places):
            console.print(f"[yellow]note:[/] {escape(sentence)}")


def _list_data(app: str, places: dict[str, Path | str]) -> Table:
    listing = Table("data", "defaults", "", "where", title=f"{app}: data", title_justify="left")
    for data, place in places.items():
        here = "[green]here[/]" if isinstance(place, Path) else "absent"
        defaults = " ".join(filter(None, fill_defaults(app, data).values()))
        listing.add_row(data, defaults, here, escape(str(place)))
    return listing


def _list_tables(app: str, places: dict[str, Path | str]) -> Table:
    listing = Table("table", "caption", "data here", title=f"{app}: tables")
    for path in find_table_specs(app):
        spec = load_spec(path)
        cells = spec.list_cells("paper", next(iter(spec.protocols)), [0])
        needed = {c.experiment for c in cells if c.experiment.is_trained}
        data = {(e.app, e.data) for e in needed}
        found = {d: places[d] if a == app else find_data(a, d) for a, d in data}
        here = sum(isinstance(place, Path) for place in found.values())
        listing.add_row(path.stem, load_table(path.stem).caption, f"{here} of {len(found)}")
    return listing


def list_differences(app: str, places: dict[str, Path | str]) -> Iterator[str]:
    """Yield a sentence for each count of data that is here and that its paper prints otherwise."""
    tables = [load_table(name) for name in list_tables()]
    for table in (table for table in tables if table.quantity == "dataset_statistics"):
        for row in table.rows:
            data = row.about["dataset"]
            if not isinstance(places.get(data), Path):
                continue
            try:
                counts = count_samples(app, data)
            except (UserError, OSError) as error:
                yield f"{data} cannot be counted: {error}"
                continue
            for key, count in counts.items():
                if count != (printed := row.values[key]):
                    metric = table.columns[key].metric
                    yield f"{data}: {count} {metric} here, {printed} in the {table.title}"
