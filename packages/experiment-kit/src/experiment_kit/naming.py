"""The names of a run say what it trains: data, network and mechanisms of the config that is run.

An entry's name, as gfsa of method/gfsa, stands where its classes are those that run, and for a
method their arguments too, with or without its rows of `at`. Otherwise the name is that of an entry
whose settings are those that run, else that of the class, with the arguments that differ from its
defaults. A name that is no entry's is the user's own, and stays.
"""

import re
import sys
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from experiment_kit.app_files import find_config, flatten_row, match_rows, read_entries

SLOTS = ("filter", "kernel", "tokens", "reparam")
NETWORKS = ("backbone", "architecture", "network")  # arguments that name a network
PLAIN = "attention_core.Plain"
Config = Mapping[str, Any]


def name_run(package: str, config: Config) -> dict[str, Any]:
    """Return the names under `run` of a merged config, corrected by what runs."""
    run, base = dict(config["run"]), find_config(package, "base") or {}
    for kind, (list_classes, describe) in _KINDS.items():
        entries, found = read_entries(package, kind), list_classes(config)

        def fits(name: str, kind: str = kind, found: Any = found, of: Any = list_classes) -> bool:
            stated = of(find_config(package, f"{kind}/{name}") or {})
            is_same = {**of(base), **stated}.items() <= found.items()
            return is_same and (kind != "method" or _has_arguments(package, name, config))

        is_own = run[kind] not in (*entries, kind)
        if not is_own and not (run[kind] in entries and fits(run[kind])):
            settings = {n: find_config(package, f"{kind}/{n}") for n in entries if fits(n)}
            alike = [name for name, entry in settings.items() if _contains(config, entry)]
            best = max(alike, key=lambda name: len(str(settings[name])), default="")
            run[kind] = best or re.sub(r"[^\w.-]+", "", describe(config))[:60]
    return run


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
    data = config.get("data") or {}
    name = (data.get("init_args") or {}).get("dataset_name")
    found = {"dataset_name": name, "class": _find_class(data)}
    return {key: value for key, value in found.items() if value}


def _list_networks(config: Config) -> dict[str, Any]:
    if own := config.get("model_class"):
        return {"class": own}
    model = config.get("model") or {}
    return {key: name for key in NETWORKS if (name := _find_class(model.get(key)))}


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
    names = {**run, "method": name}
    rows = dict(o for each in overlays for row in match_rows(each, names) for o in flatten_row(row))
    stated = dict(flatten_row({"model": entry.get("model", {})}))
    return model.get("layers", ":") == stated.get("model.layers", ":") and any(
        not any(_list_changes(model, slot, options) for slot in SLOTS)
        for options in (stated, stated | rows)
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


def _describe_class(found: Config) -> str:
    return str([*found.values(), "network"][0]).rpartition(".")[2]


def _is_same(one: Any, two: Any) -> bool:
    one, two = ([*x] if isinstance(x, list | tuple) else x for x in (one, two))
    return bool(one == two)


def _contains(whole: Any, part: Any) -> bool:
    """Return True if all that an entry sets has the same value in a config."""
    if not isinstance(part, Mapping):
        return _is_same(whole, part)
    if "class_path" in part and _find_class(whole) != _find_class(part):
        return False
    keys = part.keys() - {"at", "class_path", "defaults", "run"}
    return isinstance(whole, Mapping) and all(_contains(whole.get(k), part[k]) for k in keys)


_KINDS: dict[str, tuple[Callable[[Config], dict[str, Any]], Callable[[Config], str]]] = {
    "data": (_list_data, lambda config: _describe_class(_list_data(config))),
    "backbone": (_list_networks, lambda config: _describe_class(_list_networks(config))),
    "method": (_list_mechanisms, _describe_mechanisms),
}
