"""From the names of overlays to the arguments of an app's command line.

`base < backbone < data < recipe < method < profile < command line`; the last wins. Overlays are
`apps/<app>/configs/<kind>/<name>.yaml`. One whose settings differ by data set (a method's, a
profile's) keeps them in a table, `<kind>/<name>.tuned.yaml`: a path into the config, then a row per
data set. They come behind all overlays.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import yaml

from experiment_kit.errors import UserError
from experiment_kit.tables import Cell

APPS = Path("apps")
ORDER = ("backbone", "data", "recipe", "method", "profile")


def names(app: str, kind: str) -> list[str]:
    """The overlays of a kind that an app has.

    >>> names("no_such_app", "data")
    []
    """
    files = (APPS / app / "configs" / kind).glob("*.yaml")
    return sorted(path.stem for path in files if not path.stem.endswith(".tuned"))


def arguments(app: str, extra: Iterable[str] = (), **chosen: str | None) -> list[str]:
    """Arguments that make one experiment: its overlays in order, tuned settings, then the rest.

    `chosen` names an overlay of each kind; None, "" or profile "paper" leaves that kind out.

    Raises UserError for an app or an overlay that does not exist, naming those that do.
    """
    if not (APPS / app / "configs" / "base.yaml").is_file():
        known = sorted(path.parent.parent.name for path in APPS.glob("*/configs/base.yaml"))
        raise UserError(f"no app {app!r} under {APPS.resolve()}; there are: {', '.join(known)}")
    overlays = [_overlay(app, kind, name) for kind in ORDER if (name := _name(chosen, kind))]
    files = [APPS / app / "configs" / "base.yaml", *overlays]
    tuned = (part for path in overlays for part in _tuned(path, chosen.get("data")))
    return [part for path in files for part in ("-c", str(path))] + [*tuned, *extra]


def of_cell(cell: Cell, folder: str = "runs") -> list[str]:
    """Arguments that make one run of a table; its own win over the folder, its seed over them."""
    chosen = {kind: getattr(cell, kind) for kind in ORDER}
    folder, seed = f"--run.folder={folder}", f"--seed_everything={cell.seed}"
    return arguments(cell.app, (folder, *cell.args, seed), **chosen)


def _name(chosen: dict[str, str | None], kind: str) -> str | None:
    name = chosen.get(kind)
    return None if kind == "profile" and name == "paper" else name


def _overlay(app: str, kind: str, name: str) -> Path:
    path = APPS / app / "configs" / kind / f"{name}.yaml"
    if not path.is_file():
        raise UserError(f"no {kind} {name!r} in {app}; there are: {', '.join(names(app, kind))}")
    return path


def _tuned(overlay: Path, data: str | None) -> Iterator[str]:
    path = overlay.with_suffix(".tuned.yaml")
    if not path.is_file():
        return
    for key, rows in yaml.safe_load(path.read_text()).items():
        for name, value in rows.get(data, {}).items():
            yield f"--{key}.{name}={value if isinstance(value, str) else json.dumps(value)}"


def command(app: str, subcommand: str, args: Sequence[str]) -> list[str]:
    """The part of a command line after `python`.

    >>> command("sequence", "fit", ["-c", "x.yaml"])
    ['-m', 'attention_sequence', 'fit', '-c', 'x.yaml']
    """
    return ["-m", f"attention_{app}", subcommand, *args]


def efficiency(app: str, args: Sequence[str]) -> list[str]:
    """The part of a command line after `python` that measures what a model costs.

    >>> efficiency("vision", ["--device=cpu"])
    ['-m', 'attention_vision.efficiency', '--device=cpu']
    """
    return ["-m", f"attention_{app}.efficiency", *args]


def eigenvalues(app: str, args: Sequence[str]) -> list[str]:
    """The part of a command line after `python` that measures how a trained model grows tokens.

    >>> eigenvalues("vision", ["--samples=4"])
    ['-m', 'experiment_kit.eigenvalues', 'vision', '--samples=4']
    """
    return ["-m", "experiment_kit.eigenvalues", app, *args]
