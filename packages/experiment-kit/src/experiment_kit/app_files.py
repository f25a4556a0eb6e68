"""The configs and table specs inside the installed apps, found without importing an app.

An app is a package `attention_<app>` that holds `configs/base.yaml`. Its data sets are files,
`configs/data/<name>.yaml`; its backbones, methods, recipes, profiles, protocols and grids are
entries of one file each, as `configs/methods.yaml`. What several apps share is in the kit.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatch
from functools import cache, reduce
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import yaml

from experiment_kit.errors import UserError, check_name, convert_user_errors

PREFIX = "attention_"
SHARED = Path(__file__).parent / "configs"
KIND_FILES = ("backbones", "methods", "recipes", "profiles", "protocols", "grids")
NAMED = ("data", "backbone", "method", "profile", "protocol")  # kinds that name a run
ROW = ("data", "backbone", "recipe", "method")  # kinds that the pattern of a row names
KINDS = ("backbone", "data", "recipe", "method", "profile", "protocol")
SLOTS = ("filter", "kernel", "tokens", "reparam")
NETWORKS = ("backbone", "architecture", "network")  # arguments that name a network
PLAIN = "attention_core.Plain"
Settings = dict[str, Any]
Config = Mapping[str, Any]


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


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A loader that refuses a key that stands twice, of which YAML takes the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys: dict[str, Any] = {}
        for key in (k for k, _ in node.value if k.start_mark.index >= node.start_mark.index):
            if keys.setdefault(f"{key.tag}{key.value}", key) is not key:
                raise yaml.MarkedYAMLError(None, None, f"{key.value} stands twice", key.start_mark)
        return super().construct_mapping(node, deep)


@cache
def read_settings(path: Path) -> Settings:
    """Read a file of settings, once in a process; the caller leaves them as they are."""
    with convert_user_errors(yaml.YAMLError, UnicodeDecodeError, prefix=f"{path}: "):
        settings = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    if not isinstance(settings, dict):
        raise UserError(f"{path}: expected a mapping of names to values, got {settings!r}")
    return settings


def read_entries(package: str, kind: str) -> Mapping[str, Settings]:
    """Return the entries of a kind by name: those of the kit, then those of the app."""
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
    found = _resolve_entry(entries, entries[entry])
    return {"run": {kind: entry}, **found} if kind in NAMED else found


def _resolve_entry(entries: Mapping[str, Settings], entry: Settings) -> Settings:
    """Merge an entry into the one that it extends."""
    if "extends" not in entry:
        return entry
    own = dict(entry)
    parent = own.pop("extends")
    if isinstance(parent, str):
        parent = entries[check_name(parent, sorted(entries), "entry to extend")]
    return merge_settings(_resolve_entry(entries, parent), own)


def merge_settings(first: Any, second: Any) -> Any:
    """Merge two mappings; the second wins, and another class in it drops the first's options."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return second
    if second.get("class_path", first.get("class_path")) != first.get("class_path"):
        return second
    return {**first, **{k: merge_settings(first.get(k), v) for k, v in second.items()}}


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


def read_option(config: Any, key: str) -> Any:
    """Return the value under a dotted key; None where there is none."""
    return reduce(lambda x, k: x.get(k) if hasattr(x, "get") else None, key.split("."), config)


def match_names(pattern: str, name: str) -> bool:
    """Match names that slashes separate; a pattern may leave out the last names."""
    return fnmatch(name, pattern + "/*" * (name.count("/") - pattern.count("/")))


def find_table_specs(app: str) -> list[Path]:
    """Return the files that describe the tables of an app, in the order of their names."""
    folder = find_app_folder(app)
    return sorted(folder.glob("papers/*.yaml")) if folder else []


def name_run(package: str, config: Config) -> dict[str, Any]:
    """Return the names under `run` of a merged config, corrected by what runs.

    The name of an entry stays where its classes run, and for a method its arguments too, with or
    without its rows of `at`. Else the run has the name of the entry whose settings it has, or that
    of the class, with the arguments that differ from its defaults. A name of no entry stays.
    """
    run = dict(config["run"])
    for kind, list_classes in _CLASSES.items():
        entries, name = read_entries(package, kind), run[kind]
        if name != kind and (name not in entries or _runs_entry(package, config, kind, name)):
            continue
        fitting = [name for name in entries if _runs_entry(package, config, kind, name)]
        settings = {name: find_config(package, f"{kind}/{name}") for name in fitting}
        alike = [name for name, entry in settings.items() if _has_settings(config, entry)]
        best = max(alike, key=lambda name: len(str(settings[name])), default="")
        if not best:
            first = str([*list_classes(config).values(), "network"][0]).rpartition(".")[2]
            own = _describe_mechanisms(config) or "plain" if kind == "method" else first
            best = re.sub(r"[^\w.-]+", "", own)[:60]
        run[kind] = best
    return run


def _runs_entry(package: str, config: Config, kind: str, name: str) -> bool:
    """Return True if the classes of an entry run, with those of the base that it does not set."""
    list_classes = _CLASSES[kind]
    base, entry = (find_config(package, n) or {} for n in ("base", f"{kind}/{name}"))
    is_same = {**list_classes(base), **list_classes(entry)}.items() <= list_classes(config).items()
    return is_same and (kind != "method" or _has_arguments(package, name, config))


def _find_class(value: Any) -> str:
    """Return the full import path of the class that a setting names; "" for none."""
    path = value.get("class_path", "") if isinstance(value, Mapping) else value or ""
    found = _get_class(path)
    return f"{found.__module__}.{found.__qualname__}" if isinstance(found, type) else path


def _get_class(path: str) -> type | None:
    """Return a class that is imported; the config of a stranger must import none."""
    module, _, name = path.rpartition(".")
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) else None


def _list_data(config: Config) -> dict[str, Any]:
    name = read_option(config, "data.init_args.dataset_name")
    found = {"dataset_name": name, "class": _find_class(config.get("data"))}
    return {key: value for key, value in found.items() if value}


def _list_networks(config: Config) -> dict[str, Any]:
    if own := config.get("model_class"):
        return {"class": own}
    return {k: name for k in NETWORKS if (name := _find_class(read_option(config, f"model.{k}")))}


def _list_mechanisms(config: Config) -> dict[str, Any]:
    if not (model := config.get("model")):
        return {}  # a base says nothing of mechanisms
    found = {slot: _find_class(model.get(slot)) for slot in SLOTS}
    return {**found, "filter": found["filter"] or _find_class(PLAIN)}


def _describe_mechanisms(config: Config) -> str:
    """Name the classes in the slots, each with the arguments that differ from its defaults."""
    names = []
    for slot, path in _list_mechanisms(config).items():
        if path and path != _find_class(PLAIN):
            changed = _list_changes(config["model"], slot, {})
            names += [path.rpartition(".")[2], *(f"{k}{v}" for k, v in changed.items())]
    if (layers := config["model"].get("layers", ":")) != ":":
        names.append(f"layers{layers}")
    return "-".join(names)


def _has_arguments(package: str, name: str, config: Config) -> bool:
    """Return True if the mechanisms have a method's arguments, or those with its rows of `at`."""
    run, model = config["run"], config["model"]
    entry = find_config(package, f"method/{name}") or {}
    overlays = (entry, find_config(package, f"protocol/{run.get('protocol')}") or {})
    stated = dict(flatten_row({"model": entry.get("model", {})}))

    def list_options() -> Iterator[Settings]:
        yield stated
        for recipe in ("", *read_entries(package, "recipe")):  # a run has no name of its own
            names = {**run, "method": name, "recipe": recipe}
            rows = (row for each in overlays for row in match_rows(each, names))
            yield stated | dict(option for row in rows for option in flatten_row(row))

    return any(
        model.get("layers", ":") == options.get("model.layers", ":")
        and not any(_list_changes(model, slot, options) for slot in SLOTS)
        for options in list_options()
    )


def _list_changes(model: Config, slot: str, stated: Config) -> dict[str, Any]:
    """Return the arguments in a slot that are not as stated, or else as by default."""
    value = model.get(slot)
    known = signature(kind).parameters if (kind := _get_class(_find_class(value))) else {}
    expected = {k: p.default for k, p in known.items()}
    start = f"model.{slot}.init_args."
    expected |= {k.removeprefix(start): v for k, v in stated.items() if k.startswith(start)}
    given = value.get("init_args") or {} if isinstance(value, Mapping) else {}
    return {k: v for k, v in given.items() if k not in expected or not _is_same(v, expected[k])}


def _is_same(one: Any, two: Any) -> bool:
    one, two = ([*x] if isinstance(x, list | tuple) else x for x in (one, two))
    return bool(one == two)


def _has_settings(whole: Any, part: Any) -> bool:
    """Return True if all that an entry sets has the same value in a config."""
    if not isinstance(part, Mapping):
        return _is_same(whole, part)
    if "class_path" in part and _find_class(whole) != _find_class(part):
        return False
    keys = part.keys() - {"at", "class_path", "defaults", "run"}
    return isinstance(whole, Mapping) and all(_has_settings(whole.get(k), part[k]) for k in keys)


_CLASSES: dict[str, Callable[[Config], dict[str, Any]]] = {
    "data": _list_data, "backbone": _list_networks, "method": _list_mechanisms,
}  # fmt: skip
