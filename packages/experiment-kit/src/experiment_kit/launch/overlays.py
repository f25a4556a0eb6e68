"""Overlay names to command lines.

`base < backbone < data < recipe < method < profile < protocol < command line`; the last wins.
Overlays are `configs/<kind>/<name>.yaml` in the package of an app. Settings of an overlay that
differ by data set are rows of `<kind>/<name>.per_dataset.yaml`: a path into the config, then a row
per data set, or per pattern `data/backbone`, `data/backbone/recipe` or
`data/backbone/recipe/method`; of two that match, the later wins. They come after all overlays.
Under `defaults` a data overlay names the overlays to use where none is chosen, and a protocol, also
in its rows, the seeds.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from experiment_kit.app_files import find_app_folder, list_apps
from experiment_kit.errors import UserError

KINDS = ("backbone", "data", "recipe", "method", "profile", "protocol")
NO_OVERLAY = {"profile": "paper", "protocol": "validation"}  # names that leave a kind out
ROW = ("data", "backbone", "recipe", "method")  # kinds that the pattern of a row names
MODULES = {
    "result": ("attention_{app}", "fit"),
    "efficiency": ("experiment_kit", "efficiency", "{app}"),
    "eigenvalues": ("experiment_kit", "eigenvalues", "{app}"),
}  # that write `<source>.json` into the folder of a run


def list_overlays(app: str, kind: str) -> list[str]:
    """List the overlays of a kind that an app has."""
    folder = find_app_folder(app)
    files = (folder / "configs" / kind).glob("*.yaml") if folder else ()
    return sorted(path.stem for path in files if "." not in path.stem)


def find_overlay(app: str, kind: str, name: str) -> Path:
    """Return the file of an overlay; raises UserError, with the names that exist, if it is none."""
    folder = find_app_folder(app)
    if folder is None:
        apps = ", ".join(list_apps()) or "none"
        raise UserError(f"no app {app!r} is installed; there are: {apps}")
    path = folder / "configs" / kind / f"{name}.yaml"
    # a name with a slash or a dot would reach other files
    if not re.fullmatch(r"[\w-]+", name) or not path.is_file():
        none = [NO_OVERLAY[kind]] if kind in NO_OVERLAY else []
        names = ", ".join(sorted([*list_overlays(app, kind), *none]))
        raise UserError(f"no {kind} {name!r} in {app}; there are: {names}")
    return path


@cache
def read_settings(path: Path) -> dict[str, Any]:
    """Read a file of settings, once in a process; the caller leaves them as they are.

    Raises UserError, with the file and the line, where it is no mapping in YAML.
    """
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(settings, dict):
        raise UserError(f"{path}: expected a mapping of names to values, got {settings!r}")
    return settings


def overlay_arguments(app: str, extra: Iterable[str] = (), **chosen: str | None) -> list[str]:
    """Return the arguments of one experiment: overlays in order, per-dataset rows, then `extra`.

    `chosen` names an overlay of each kind; None, "", profile "paper" and protocol "validation"
    leave that kind out.
    """
    base = find_overlay(app, "", "base")
    names = {kind: chosen.get(kind) or "" for kind in KINDS}
    named = [item for item in names.items() if item[1] and item not in NO_OVERLAY.items()]
    overlays = [find_overlay(app, kind, name) for kind, name in named]
    rows = [
        f"--{key}.{name}={value if isinstance(value, str) else json.dumps(value)}"
        for path in overlays
        for key, row in _read_rows(path, names)
        for name, value in row.items()
        if key != "defaults"
    ]
    files = [part for path in (base, *overlays) for part in ("-c", str(path))]
    return [*files, *rows, *extra]


def _read_rows(overlay: Path, names: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the paths into the config, each with the values of the rows that match."""
    path = overlay.with_suffix(".per_dataset.yaml")
    if not path.is_file():
        return
    experiment = "/".join(names.get(kind, "") for kind in ROW)
    for key, rows in read_settings(path.resolve()).items():
        found: dict[str, Any] = {}
        for pattern, row in rows.items():
            found |= row if _matches(pattern, experiment) else {}
        yield key, found


def read_defaults(app: str, data: str) -> dict[str, Any]:
    """Return the defaults of a data set: its overlays, and its documented size."""
    return _read_defaults(find_overlay(app, "data", data))


def read_app_defaults(app: str) -> dict[str, Any]:
    """Return the data set and the methods that an app's base overlay names."""
    return _read_defaults(find_overlay(app, "", "base"))


def choose_overlays(
    app: str, data: str | None, protocol: str | None = None, **chosen: str | None
) -> dict[str, str]:
    """Return data set, backbone, recipe, profile and protocol: those chosen, else the defaults."""
    data = data or str(read_app_defaults(app)["data"])
    return {"data": data, **fill_defaults(app, data, **chosen), "protocol": protocol or ""}


def choose_seeds(app: str, default: Sequence[int], **names: str) -> list[int]:
    """Return the seeds that the protocol names for an experiment, else `default`."""
    protocol = names["protocol"]
    if protocol in ("", NO_OVERLAY["protocol"]):
        return [*default]
    path = find_overlay(app, "protocol", protocol)
    row = dict(_read_rows(path, names)).get("defaults", {})
    return {"seeds": [*default], **_read_defaults(path), **row}["seeds"]


def fill_defaults(app: str, data: str, **chosen: str | None) -> dict[str, str]:
    """Return backbone, recipe and profile: those chosen, else the defaults of the data set.

    The defaults are refined by `by_profile` and `by_backbone`, patterns of names, of which the
    first that matches counts; one of `by_backbone` may be `backbone/method`. None is not chosen; ""
    chooses none, and so does profile "paper".

    Raises UserError where neither names a backbone.
    """
    path = find_overlay(app, "data", data)
    defaults = _read_defaults(path)
    backbone = chosen.get("backbone") or defaults.get("backbone")
    if not backbone:
        names = ", ".join(list_overlays(app, "backbone"))
        raise UserError(f"name a backbone: {path} has no default; there are: {names}")
    experiment = f"{backbone}/{chosen.get('method') or ''}"
    by_backbone = _match(defaults.get("by_backbone", {}), experiment)
    profile = chosen.get("profile")
    if profile is None:
        profile = by_backbone.get("profile", defaults.get("profile", ""))
    by_profile = _match(defaults.get("by_profile", {}), profile or "paper")
    recipe = chosen.get("recipe")
    if recipe is None:
        recipe = {"recipe": "", **defaults, **by_backbone, **by_profile}["recipe"]
    return {"backbone": backbone, "recipe": recipe, "profile": profile}


def _read_defaults(path: Path) -> dict[str, Any]:
    return read_settings(path.resolve()).get("defaults", {})


def _match(refinements: Mapping[str, dict[str, str]], name: str) -> dict[str, str]:
    return next((part for pattern, part in refinements.items() if _matches(pattern, name)), {})


def _matches(pattern: str, name: str) -> bool:
    """Match names with slashes between, of which a pattern may leave the last ones open.

    >>> _matches("cola", "cola/bert_base"), _matches("*/deit_*_24", "digits/deit_tiny")
    (True, False)
    """
    slashes = name.count("/") - pattern.count("/")
    return fnmatch(name, pattern + "/*" * slashes)


def command_line(app: str, source: str, arguments: Sequence[str]) -> list[str]:
    """Return the part of a command line after `python` that makes `<source>.json` of a run."""
    return ["-m", *(part.format(app=app) for part in MODULES[source]), *arguments]
