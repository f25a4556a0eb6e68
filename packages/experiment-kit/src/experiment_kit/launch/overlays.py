"""Names of overlays to command lines.

`base < backbone < data < recipe < method < profile < protocol < command line`; the last wins.
An entry `extends` another one of its kind, whose settings come before its own. Under `at` it has
settings for patterns of `data/backbone/recipe/method`, of which the last ones may be left out; of
two that match, the later wins. They come after all overlays. Under `defaults` a data set names the
overlays to use where none is chosen, and a protocol, also in `at`, the seeds.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiment_kit import app_files
from experiment_kit.app_files import KINDS, PREFIX, match_rows
from experiment_kit.errors import UserError, check_name, suggest_name

NO_OVERLAY = {"profile": "paper", "protocol": "validation"}  # names that leave a kind out


def list_overlays(app: str, kind: str) -> list[str]:
    """List the overlays of a kind that an app has."""
    return sorted(app_files.read_entries(PREFIX + app, kind))


def read_overlay(app: str, kind: str, name: str) -> app_files.Settings:
    """Return the settings of an overlay; UserError, with those that exist, if there is none."""
    found = app_files.find_config(PREFIX + app, f"{kind}/{name}" if kind else name)
    if found is not None:
        return found
    check_name(app, app_files.list_apps(), "installed app")
    none = {NO_OVERLAY[kind]} if kind in NO_OVERLAY else set()
    if kind == "data" and "." in name:
        raise UserError(f"a class of your own is for attention-{app} fit -c base --data={name}")
    names = sorted({*list_overlays(app, kind)} | none)
    close = suggest_name(name, names)
    raise UserError(f"no {kind} {name!r} in {app}{close}; there are: {', '.join(names)}")


def overlay_arguments(app: str, extra: Iterable[str] = (), **chosen: str | None) -> list[str]:
    """Return the arguments of one experiment: overlays in order, rows of `at`, then `extra`."""
    names = {kind: chosen.get(kind) or "" for kind in KINDS}
    named = [item for item in names.items() if item[1] and item not in NO_OVERLAY.items()]
    read_overlay(app, "", "base")  # names the apps where this one is not installed
    rows = [
        f"--{key}={value if isinstance(value, str) else json.dumps(value)}"
        for kind, name in named
        for row in match_rows(read_overlay(app, kind, name), names)
        for key, value in app_files.flatten_row(row)
    ]
    files = [part for item in named for part in ("-c", "/".join(item))]
    return ["-c", "base", *files, *rows, *extra]


def read_defaults(app: str, data: str = "") -> dict[str, Any]:
    """Return overlays and documented size of a data set, or data set and methods of an app."""
    found = read_overlay(app, "data", data) if data else read_overlay(app, "", "base")
    return found.get("defaults", {})


def choose_overlays(
    app: str, data: str | None, protocol: str | None = None, **chosen: str | None
) -> dict[str, str]:
    """Return data set, backbone, recipe, profile and protocol: those chosen, else the defaults."""
    # a protocol that is not the project's own is a paper's, of runs at full length
    data = data or str(read_defaults(app)["data"])
    if chosen.get("profile") is None and protocol not in (None, "", NO_OVERLAY["protocol"]):
        chosen["profile"] = NO_OVERLAY["profile"]
    return {"data": data, **fill_defaults(app, data, **chosen), "protocol": protocol or ""}


def choose_seeds(app: str, default: Sequence[int], **names: str) -> list[int]:
    """Return the seeds that the protocol names for an experiment, else `default`."""
    protocol = names["protocol"]
    if protocol in ("", NO_OVERLAY["protocol"]):
        return [*default]
    overlay = read_overlay(app, "protocol", protocol)
    rows = (settings.get("defaults", {}) for settings in (overlay, *match_rows(overlay, names)))
    return [row["seeds"] for row in ({"seeds": [*default]}, *rows) if "seeds" in row][-1]


def fill_defaults(app: str, data: str, **chosen: str | None) -> dict[str, str]:
    """Return backbone, recipe and profile: those chosen, else the defaults of the data set.

    `by_profile` and `by_backbone` refine the defaults by patterns of names, of which the first that
    matches counts; a pattern of `by_backbone` may be `backbone/method`. What is None has its
    default; "" chooses no overlay, and so does the profile "paper".
    """
    defaults = read_defaults(app, data)
    backbone = chosen.get("backbone") or defaults.get("backbone")
    if not backbone:
        names = ", ".join(list_overlays(app, "backbone"))
        raise UserError(f"name a backbone: data {data} has no default; there are: {names}")
    experiment = f"{backbone}/{chosen.get('method') or ''}"
    by_backbone = _find_refinement(defaults.get("by_backbone", {}), experiment)
    if not chosen.get("backbone"):  # a method may have one of its own
        backbone = by_backbone.get("backbone", backbone)
    profile = chosen.get("profile")
    if profile is None:
        profile = by_backbone.get("profile", defaults.get("profile", ""))
    by_profile = _find_refinement(defaults.get("by_profile", {}), profile or "paper")
    recipe = chosen.get("recipe")
    if recipe is None:
        recipe = {"recipe": "", **defaults, **by_backbone, **by_profile}["recipe"]
    return {"backbone": backbone, "recipe": recipe, "profile": profile}


def _find_refinement(refinements: Mapping[str, dict[str, str]], name: str) -> dict[str, str]:
    found = (part for names, part in refinements.items() if app_files.match_names(names, name))
    return next(found, {})
