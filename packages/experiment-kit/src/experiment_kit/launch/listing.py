"""What there is to run, and whether its data is here."""

from pathlib import Path
from pydoc import locate
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from experiment_kit.errors import UserError
from experiment_kit.launch import compose
from experiment_kit.tables import load, load_spec

Places = dict[tuple[str, str], Path | str]  # of the data sets of each app, or why there is none


def list_all() -> None:
    """List every experiment and table, and whether the data that each needs is here."""
    console = Console()
    apps = sorted(path.parent.parent.name for path in compose.APPS.glob("*/configs/base.yaml"))
    places = {
        (app, name): whereabouts(app, name) for app in apps for name in compose.names(app, "data")
    }
    for app in apps:
        for kind in ("backbone", "method", "recipe", "profile"):
            if found := compose.names(app, kind):
                console.print(f"[bold]{app}[/] {kind}: {', '.join(found)}")
        console.print(_data(app, places), _tables(app, places))


def _data(app: str, places: Places) -> Table:
    listing = Table("data", "", "where", title=f"{app}: data", title_justify="left")
    for name in compose.names(app, "data"):
        place = places[app, name]
        here = "[green]here[/]" if isinstance(place, Path) else "absent"
        listing.add_row(name, here, str(place))
    return listing


def _tables(app: str, places: Places) -> Table:
    listing = Table("table", "what it shows", "data here", title=f"{app}: tables")
    for path in sorted((compose.APPS / app / "papers").glob("*.yaml")):
        spec, paper = load_spec(path), load(path.stem)
        cells = spec.cells("paper", next(iter(spec.protocols)), [0])
        needed = {(cell.app, cell.data) for cell in cells if cell.trained}
        here = [name for name in needed if isinstance(places[name], Path)]
        listing.add_row(path.stem, paper.caption, f"{len(here)} of {len(needed)}")
    return listing


def whereabouts(app: str, data: str) -> Path | str:
    """The file that holds a data set, or why there is none, as its data module says."""
    folder = compose.APPS / app / "configs"
    base, own = (
        yaml.safe_load((folder / f).read_text()) for f in ("base.yaml", f"data/{data}.yaml")
    )
    kind = own["data"].get("class_path", base["data"]["class_path"])
    try:
        module: Any = locate(kind)
        if dataset_name := own["data"]["init_args"].get("dataset_name"):
            return module.find_data(dataset_name)
        # shim: issue 16, deleted at the end
        return module.whereabouts(own["data"]["init_args"]["name"])
    except UserError as error:
        return str(error)
