"""The printed figures, one entry each in `entries/*.yaml`, and the runs that they show."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from experiment_kit.app_files import read_settings
from experiment_kit.errors import UserError
from experiment_kit.launch.plan import read_run
from experiment_kit.papers.values import check_name
from experiment_kit.run import Run
from experiment_kit.run_files import read_result, try_read

PAPERS = {
    "gfsa": "GFSA",
    "attnscale": "AttnScale and FeatScale",
    "agf": "AGF",
    "record_straight": "Setting the Record Straight",
}
# drawings that need no model: of nothing, of what runs wrote, and of results
_WITHOUT_MODELS = {"diagram", "training", "ratio_history", "condition_history", "sweep",
                   "gains", "errors", "scores", "evolution"}  # fmt: skip


@dataclass(frozen=True)
class RunGroup:
    """The runs of a figure, or of one of its panels: methods of one backbone on one data set.

    `methods` maps the names of methods to the labels of their lines.
    """

    app: str
    data: str
    backbone: str
    methods: Mapping[str, str]
    recipe: str = ""
    panel: str = ""

    def make_command(self, grid: str = "") -> str:
        """Return the command that makes the runs, in the setting of the paper.

        >>> RunGroup("vision", "cifar100", "vit_tiny", {"plain": "ViT-Ti"}).make_command()
        'make vision DATA=cifar100 BACKBONE=vit_tiny METHODS=plain PROFILE=paper'
        """
        names = {"DATA": self.data, "BACKBONE": self.backbone, "METHODS": ",".join(self.methods),
                 "RECIPE": self.recipe, "GRID": grid}  # fmt: skip
        given = [f"{key}={value}" for key, value in names.items() if value]
        return " ".join([f"make {self.app}", *given, "PROFILE=paper"])


@dataclass(frozen=True)
class FigureEntry:
    """A printed figure: what it plots, by which drawing and from which runs or table.

    `missing` says what the printed one needs beyond a command, and `text` has the numbers that the
    paper reads off it. `options` are those of the drawing.
    """

    paper: str
    number: int
    caption: str
    draw: str
    missing: str = ""
    table: str = ""
    grid: str = ""
    groups: tuple[RunGroup, ...] = ()
    text: Mapping[str, float] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The paper and the number, as `gfsa-2`."""
        return f"{self.paper.replace('_', '-')}-{self.number}"

    @property
    def title(self) -> str:
        """The name of the paper and the number of the figure."""
        return f"{PAPERS[self.paper]}, figure {self.number}"

    @property
    def is_diagram(self) -> bool:
        """True for a figure that shows an architecture, and plots nothing."""
        return self.draw == "diagram"

    @property
    def is_of_models(self) -> bool:
        """True for a figure that any model can be drawn into."""
        return self.draw not in _WITHOUT_MODELS


def list_figures(paper: str = "") -> list[FigureEntry]:
    """Return the figures of a paper, or of all; UserError, with the names, for an unknown one."""
    if paper:
        check_name(paper.replace("-", "_"), PAPERS, "paper with figures")
    return [e for e in _read_entries().values() if paper.replace("-", "_") in ("", e.paper)]


def find_figure(name: str) -> FigureEntry:
    """Return a figure by its id; UserError, with similar ones, if there is none."""
    entries = _read_entries()
    return entries[check_name(name.replace("_", "-"), entries, "figure")]


@cache
def _read_entries() -> dict[str, FigureEntry]:
    folder = Path(__file__).parent / "entries"
    contents = [read_settings(folder / f"{paper}.yaml") for paper in PAPERS]
    entries = [_parse_entry(c["paper"], figure) for c in contents for figure in c["figures"]]
    return {entry.id: entry for entry in entries}


def _parse_entry(paper: str, content: Mapping[str, Any]) -> FigureEntry:
    known = FigureEntry.__dataclass_fields__
    options = {key: value for key, value in content.items() if key not in known}
    own = {key: value for key, value in content.items() if key in known}
    own["groups"] = tuple(RunGroup(**group) for group in content.get("groups", ()))
    return FigureEntry(paper=paper, options=options, **own)


@dataclass(frozen=True)
class PanelRuns:
    """The runs of a panel by the label of their line: a run for each seed, the first seed first."""

    group: RunGroup
    runs: Mapping[str, Sequence[Path]]


def find_runs(entry: FigureEntry, folder: Path) -> tuple[list[PanelRuns], list[str]]:
    """Return the runs in a folder that a figure can be drawn from, and notes on what is missing.

    A group takes the runs of the printed data set and backbone, or else those of the setting of
    its app that has the most of its methods.
    """
    panels, notes = [], []
    for group in entry.groups:
        found = dict([*_list_runs(group, folder).groupby(["data", "backbone", "profile"])])
        command = group.make_command(entry.grid)
        if not found:
            where = f"{group.panel}: " if group.panel else ""
            notes.append(f"{where}no run of {group.app} in {folder} has a method of this figure: "
                         f"{command} makes them")  # fmt: skip
            continue
        printed = group.data, group.backbone
        ranks = {s: (s[:2] == printed, s[2] == "paper", own["method"].nunique(), s)
                 for s, own in found.items()}  # fmt: skip
        data, backbone, profile = setting = max(ranks, key=ranks.__getitem__)
        own = found[setting].groupby("method")["folder"].agg(list)
        named = rename_group(group, data, backbone)
        runs = {named.methods[m]: own[m] for m in group.methods if m in own}
        panels.append(PanelRuns(named, runs))
        if setting != (*printed, "paper"):
            scale = "" if profile == "paper" else f", profile {profile}"
            notes.append(f"drawn from runs of {backbone} on {data}{scale}, where the paper has "
                         f"{group.backbone} on {group.data}: {command} makes those")  # fmt: skip
        if absent := [label for method, label in group.methods.items() if method not in own]:
            notes.append(f"{', '.join(absent)} left out, as no such run is here: {command}")
    return panels, notes


def _list_runs(group: RunGroup, folder: Path) -> pd.DataFrame:
    """Return the runs of a group's methods by seed; of two that are alike, the newest."""
    finished = [run for run in Run.find_all(folder, group.app) if run.has_result]
    finished.sort(key=lambda run: (run.folder / "result.json").stat().st_mtime)
    results = ((run.folder, try_read(run.read_result)) for run in finished)
    names = ["data", "backbone", "profile", "method", "seed"]
    lines = [[*map(result.get, names), path] for path, result in results if result]
    runs = pd.DataFrame(lines, columns=[*names, "folder"])
    runs = runs[runs["method"].isin([*group.methods])]
    return runs.drop_duplicates(names, keep="last").sort_values("seed")


def name_runs(entry: FigureEntry, folders: Sequence[str]) -> list[PanelRuns]:
    """Return the named runs as panels of a figure; UserError for a run of another app."""
    apps = list(dict.fromkeys(group.app for group in entry.groups))
    panels: list[dict[str, list[Path]]] = [defaultdict(list) for _ in entry.groups]
    for folder in map(Path, folders):
        app, result = read_run(folder)["app"], read_result(folder) or {}
        if app not in apps:
            raise UserError(f"{folder} is a run of {app}; {entry.id} is drawn from runs of "
                            f"{' and '.join(apps)}")  # fmt: skip
        alike = [i for i, group in enumerate(entry.groups) if group.app == app]
        place = next((i for i in alike if entry.groups[i].backbone == result["backbone"]), alike[0])
        group = rename_group(entry.groups[place], result["data"], result["backbone"])
        label = group.methods.get(result["method"], f"{result['backbone']} + {result['method']}")
        others = f"{label}, {result['data']} {result['backbone']}", f"{label} {result['hash']}"
        free = (name for name in (label, *others) if name not in panels[place])
        panels[place][next(free)].append(folder)
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
