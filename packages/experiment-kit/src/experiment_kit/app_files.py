"""The configs and table specs inside the installed apps, found without importing an app.

An app is a package `attention_<app>` that holds `configs/base.yaml`. Its data sets are files,
`configs/data/<name>.yaml`; its backbones, methods, recipes, profiles, protocols and grids are
entries of one file each, as `configs/methods.yaml`. Methods that all apps share are in the kit.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from experiment_kit.errors import UserError, convert_user_errors

PREFIX = "attention_"
SHARED = Path(__file__).parent / "configs"
KIND_FILES = ("backbones", "methods", "recipes", "profiles", "protocols", "grids")
NAMED = ("data", "backbone", "method", "profile", "protocol")  # kinds that name a run
ROW = ("data", "backbone", "recipe", "method")  # kinds that the pattern of a row names
Settings = dict[str, Any]


def list_apps() -> list[str]:
    """List the installed apps."""
    found = (path.name for entry in sys.path for path in Path(entry).glob(f"{PREFIX}*"))
    return sorted(filter(find_app_folder, {name.removeprefix(PREFIX) for name in found}))


def find_app_folder(app: str) -> Path | None:
    """Return the folder of an app's package; None if there is no such app."""
    folder = find_package(f"{PREFIX}{app}")
    return folder if folder and (folder / "configs/base.yaml").is_file() else None


def find_package(name: str) -> Path | None:
    """Return the folder of an installed package; None if there is none."""
    # a dot would import the parent
    spec = find_spec(name) if name.isidentifier() else None
    locations = (spec and spec.submodule_search_locations) or []
    return next((Path(location).absolute() for location in locations), None)


@cache
def read_settings(path: Path) -> Settings:
    """Read a file of settings, once in a process; the caller leaves them as they are."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with convert_user_errors(yaml.YAMLError, UnicodeDecodeError, prefix=f"{path}: "):
        settings = yaml.load(path.read_text(encoding="utf-8"), loader)
    if not isinstance(settings, dict):
        raise UserError(f"{path}: expected a mapping of names to values, got {settings!r}")
    return settings


def read_entries(package: str, kind: str) -> Mapping[str, Settings]:
    """Return the entries of a kind that an app has, by name: those of the kit, then its own."""
    folder = find_package(package)
    return _read_entries(folder, kind) if folder else {}


@cache
def _read_entries(folder: Path, kind: str) -> Mapping[str, Settings]:
    if kind == "data":
        paths = sorted((folder / "configs/data").glob("*.yaml"))
        return {path.stem: read_settings(path) for path in paths}
    files = (root / f"{kind}s.yaml" for root in (SHARED, folder / "configs"))
    entries: dict[str, Settings] = {}
    for path in files:
        own = read_settings(path) if path.is_file() else {}
        # an entry that extends its own name refines that of the kit
        entries |= {
            name: {**entry, "extends": entries[name]} if entry.get("extends") == name else entry
            for name, entry in own.items()
        }
    return entries


def find_config(package: str, name: str) -> Settings | None:
    """Return the settings of `base` or `<kind>/<entry>`, with those they extend; else None."""
    if not re.fullmatch(r"[\w-]+(/[\w-]+)?", name) or (folder := find_package(package)) is None:
        return None
    kind, slash, entry = name.partition("/")
    if not slash:
        path = folder / "configs" / f"{name}.yaml"
        return read_settings(path) if path.is_file() and name not in KIND_FILES else None
    entries = read_entries(package, kind)
    if entry not in entries:
        return None
    found = _extend(entries, entries[entry])
    return {"run": {kind: entry}, **found} if kind in NAMED else found


def _extend(entries: Mapping[str, Settings], entry: Settings) -> Settings:
    """Merge an entry into the one that it extends."""
    if "extends" not in entry:
        return entry
    own = dict(entry)
    parent = own.pop("extends")
    if isinstance(parent, str):
        if parent not in entries:
            names = ", ".join(sorted(entries))
            raise UserError(f"extends: no entry {parent!r}; there are: {names}")
        parent = entries[parent]
    return _merge(_extend(entries, parent), own)


def _merge(first: Any, second: Any) -> Any:
    """Merge mappings, of which the second wins; another class drops the options of the first."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return second
    if second.get("class_path", first.get("class_path")) != first.get("class_path"):
        return second
    return {**first, **{key: _merge(first.get(key), value) for key, value in second.items()}}


def match_rows(overlay: Settings, names: Mapping[str, str]) -> Iterator[Settings]:
    """Yield the rows of `at` that match the names of an experiment."""
    experiment = "/".join(names.get(kind, "") for kind in ROW)
    for patterns, row in overlay.get("at", {}).items():
        if any(match_names(pattern.strip(), experiment) for pattern in patterns.split(",")):
            yield row


def flatten_row(row: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the options of a row, by their keys with dots, and their values."""
    for key, value in row.items():
        if isinstance(value, dict):
            yield from flatten_row(value, f"{start}{key}.")
        elif start != "defaults.":
            yield f"{start}{key}", value


def match_names(pattern: str, name: str) -> bool:
    """Match names with slashes between, of which a pattern may leave the last ones open."""
    slashes = name.count("/") - pattern.count("/")
    return fnmatch(name, pattern + "/*" * slashes)


def find_table_specs(app: str) -> list[Path]:
    """Return the files that describe the tables of an app, in the order of their names."""
    folder = find_app_folder(app)
    return sorted(folder.glob("papers/*.yaml")) if folder else []
