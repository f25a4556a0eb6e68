"""The finished runs that a figure is drawn from: named ones, or those that a folder has."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiment_kit.errors import UserError
from experiment_kit.launch.finished_runs import read_run
from experiment_kit.papers.figures.entries import FigureEntry, RunGroup
from experiment_kit.run import Run
from experiment_kit.run_files import read_result, try_read

Setting = tuple[str, str, str]  # data, backbone, profile


@dataclass(frozen=True)
class PanelRuns:
    """The runs of a panel by the label of their line: a run for each seed, the first seed first."""

    group: RunGroup
    runs: Mapping[str, Sequence[Path]]

    @property
    def title(self) -> str:
        """The title of the panel, "" if there is but one."""
        return self.group.panel


def find_runs(entry: FigureEntry, folder: Path) -> tuple[list[PanelRuns], list[str]]:
    """Return the runs in a folder that a figure can be drawn from, and notes on what is missing.

    A group takes the runs of the printed data set and backbone, or else those of the setting of
    its app that has the most of its methods.
    """
    panels, notes = [], []
    for group in entry.groups:
        found = _list_settings(group, folder)
        if not found:
            where = f"{group.panel}: " if group.panel else ""
            notes.append(f"{where}no run of {group.app} in {folder} has a method of this figure: "
                         f"{group.make_command(entry.grid)} makes them")  # fmt: skip
            continue
        setting = max(found, key=lambda s: (_is_printed(group, s), len(found[s]), s))
        named = rename_group(group, *setting[:2])
        runs = {named.methods[m]: found[setting][m] for m in group.methods if m in found[setting]}
        panels.append(PanelRuns(named, runs))
        notes += _describe_difference(entry, group, setting, found[setting])
    return panels, notes


def name_runs(entry: FigureEntry, folders: Sequence[str]) -> list[PanelRuns]:
    """Return the named runs as panels of a figure.

    Raises UserError for a folder of no finished run, and for a run of an app that the figure is
    not drawn from.
    """
    apps = list(dict.fromkeys(group.app for group in entry.groups))
    panels: list[dict[str, list[Path]]] = [defaultdict(list) for _ in entry.groups]
    if not apps:
        raise UserError(f"{entry.id} is drawn from no run: leave out --runs")
    for folder in map(Path, folders):
        config = read_run(folder)
        result = read_result(folder) or {}
        if config["app"] not in apps:
            raise UserError(f"{folder} is a run of {config['app']}; {entry.id} is drawn from runs "
                            f"of {' and '.join(apps)}")  # fmt: skip
        alike = [i for i, group in enumerate(entry.groups) if group.app == config["app"]]
        place = next((i for i in alike if entry.groups[i].backbone == result["backbone"]), alike[0])
        group = rename_group(entry.groups[place], result["data"], result["backbone"])
        label = group.methods.get(result["method"], f"{result['backbone']} + {result['method']}")
        panels[place][_distinguish(label, result, panels[place])].append(folder)
    pairs = zip(entry.groups, panels, strict=True)
    return [PanelRuns(group, dict(runs)) for group, runs in pairs if runs]


def rename_group(group: RunGroup, data: str, backbone: str) -> RunGroup:
    """Return a group whose labels and panel name another setting than the printed one.

    >>> rename_group(RunGroup("vision", "imagenet_1k", "deit_small", {"gfsa": "DeiT-S + GFSA"}),
    ...              "digits", "deit_tiny").methods
    {'gfsa': 'deit_tiny + gfsa'}
    """
    if (data, backbone) == (group.data, group.backbone):
        return group
    methods = {m: backbone if m == "plain" else f"{backbone} + {m}" for m in group.methods}
    return replace(group, methods=methods, panel=f"{backbone}, {data}" if group.panel else "")


def _list_settings(group: RunGroup, folder: Path) -> dict[Setting, dict[str, list[Path]]]:
    """Return the runs of a group's methods by setting and method, one for each seed."""
    newest: dict[tuple[Setting, str, int], Path] = {}
    finished = [run for run in Run.find_all(folder, group.app) if run.has_result]
    for run in sorted(finished, key=_read_time):
        result = try_read(run.read_result)
        if result and result["app"] == group.app and result["method"] in group.methods:
            setting = result["data"], result["backbone"], result["profile"]
            newest[setting, result["method"], result["seed"]] = run.folder
    found: dict[Setting, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for (setting, method, _), path in sorted(newest.items()):
        found[setting][method].append(path)
    return found


def _read_time(run: Run) -> float:
    return (run.folder / "result.json").stat().st_mtime


def _is_printed(group: RunGroup, setting: Setting) -> tuple[bool, bool]:
    data, backbone, profile = setting
    return (data, backbone) == (group.data, group.backbone), profile == "paper"


def _describe_difference(
    entry: FigureEntry, group: RunGroup, setting: Setting, methods: Mapping[str, Any]
) -> list[str]:
    data, backbone, profile = setting
    command = group.make_command(entry.grid)
    notes = []
    if not all(_is_printed(group, setting)):
        scale = "" if profile == "paper" else f", profile {profile}"
        notes.append(f"drawn from runs of {backbone} on {data}{scale}, where the paper has "
                     f"{group.backbone} on {group.data}: {command} makes those")  # fmt: skip
    if absent := [label for method, label in group.methods.items() if method not in methods]:
        notes.append(f"{', '.join(absent)} left out, as no such run is here: {command}")
    return notes


def _distinguish(label: str, result: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """Return a label that differs from those of other runs; seeds of one config share theirs."""
    if label not in known:
        return label
    named = f"{label}, {result['data']} {result['backbone']}"
    return named if named not in known else f"{named} {result['hash']}"
