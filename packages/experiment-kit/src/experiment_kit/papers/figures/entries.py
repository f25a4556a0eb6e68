"""The printed figures, one entry each in `entries/*.yaml`, and the runs and models they show."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from attention_core import diagnose
from attention_core.diagnosis import Diagnosis
from attention_core.diagnosis.batches import ModelInputs
from attention_core.diagnosis.diagnose import prepare_model
from attention_core.diagnosis.run import LayerMaps, collect_maps
from rich.progress import track
from torch import Tensor

from experiment_kit.app_files import read_settings
from experiment_kit.diagnosis.model_sources import load_run, load_source
from experiment_kit.errors import UserError, convert_user_errors
from experiment_kit.launch.plan import read_run
from experiment_kit.papers.values import check_name
from experiment_kit.run import Run
from experiment_kit.run_files import read_result, try_read

PAPERS = ("gfsa", "attnscale", "agf", "record_straight")
SAMPLES = 8


@dataclass(frozen=True)
class RunGroup:
    """The runs of a figure, or of one of its panels: methods of one backbone on one data set."""

    app: str
    data: str
    backbone: str
    methods: Mapping[str, str]
    recipe: str = ""
    panel: str = ""

    def make_command(self) -> str:
        """Return the command that makes the runs, in the setting of the paper."""
        names = {"DATA": self.data, "BACKBONE": self.backbone, "METHOD": ",".join(self.methods),
                 "RECIPE": self.recipe}  # fmt: skip
        given = [f"{key}={value}" for key, value in names.items() if value]
        return " ".join([f"make {self.app}", *given, "PROFILE=paper"])

    def label_run(self, data: str, backbone: str, method: str) -> str:
        """Return the label of a run: the printed one, or one that names another backbone."""
        if (data, backbone) == (self.data, self.backbone) and method in self.methods:
            return self.methods[method]
        return backbone if method == "plain" else f"{backbone} + {method}"

    def name_panel(self, data: str, backbone: str) -> str:
        """Return the title of the panel: the printed one, or another setting."""
        is_printed = (data, backbone) == (self.data, self.backbone)
        return self.panel and (self.panel if is_printed else f"{backbone}, {data}")


@dataclass(frozen=True)
class FigureEntry:
    """A printed figure: what it plots, by which drawing and from which runs or table.

    `missing` says what the printed one needs beyond a command; `options` are those of the drawing.
    """

    paper: str
    number: int
    caption: str
    draw: str
    missing: str = ""
    table: str = ""
    groups: tuple[RunGroup, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The paper and the number, as `gfsa-2`."""
        return f"{self.paper.replace('_', '-')}-{self.number}"


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
    known, entries = FigureEntry.__dataclass_fields__, {}
    for content, figure in ((c, figure) for c in contents for figure in c["figures"]):
        own = {key: value for key, value in figure.items() if key in known}
        own["groups"] = tuple(RunGroup(**group) for group in figure.get("groups", ()))
        options = {key: value for key, value in figure.items() if key not in known}
        entry = FigureEntry(paper=content["paper"], options=options, **own)
        entries[entry.id] = entry
    return entries


PanelRuns = dict[str, dict[str, list[Path]]]  # by title and label, a run for each seed


def find_runs(entry: FigureEntry, folder: Path) -> tuple[PanelRuns, list[str]]:
    """Return the runs in a folder that a figure can be drawn from, and notes on what is missing."""
    panels: PanelRuns = {}
    notes = []
    for group in entry.groups:
        found = _list_runs(group, folder)
        command = group.make_command()
        if not found:
            where = f"{group.panel}: " if group.panel else ""
            notes.append(f"{where}no run of {group.app} in {folder} has a method of this figure: "
                         f"{command} makes them")  # fmt: skip
            continue
        printed = group.data, group.backbone
        # the printed setting, or else that which has the most methods
        ranks = {s: (s[:2] == printed, s[2] == "paper", len(own), s) for s, own in found.items()}
        data, backbone, profile = setting = max(ranks, key=ranks.__getitem__)
        own = {m: [*found[setting][m].values()] for m in group.methods if m in found[setting]}
        runs = {group.label_run(data, backbone, m): seeds for m, seeds in own.items()}
        panels[group.name_panel(data, backbone)] = runs
        if setting != (*printed, "paper"):
            scale = "" if profile == "paper" else f", profile {profile}"
            notes.append(f"drawn from runs of {backbone} on {data}{scale}, where the paper has "
                         f"{group.backbone} on {group.data}: {command} makes those")  # fmt: skip
        if absent := [label for method, label in group.methods.items() if method not in own]:
            notes.append(f"{', '.join(absent)} left out, as no such run is here: {command}")
    return panels, notes


def _list_runs(group: RunGroup, folder: Path) -> dict[tuple[str, ...], dict[str, dict[int, Path]]]:
    """Return the runs of a group by setting, method and seed; of two that are alike, the newest."""
    finished = [run for run in Run.find_all(folder, group.app) if run.has_result]
    finished.sort(key=lambda run: (run.folder / "result.json").stat().st_mtime)
    found: Any = defaultdict(lambda: defaultdict(dict))
    for run in finished:
        result = try_read(run.read_result)
        if result and result["method"] in group.methods:
            setting = result["data"], result["backbone"], result["profile"]
            seeds = found[setting][result["method"]]
            seeds[result["seed"]] = run.folder
            found[setting][result["method"]] = dict(sorted(seeds.items()))
    return found


def name_runs(entry: FigureEntry, folders: Sequence[str]) -> PanelRuns:
    """Return the named runs as panels of a figure; UserError for a run of another app."""
    panels: PanelRuns = {}
    for folder in map(Path, folders):
        app, result = read_run(folder)["app"], read_result(folder) or {}
        groups = [group for group in entry.groups if group.app == app]
        if not groups:
            apps = " and ".join(dict.fromkeys(group.app for group in entry.groups))
            raise UserError(f"{folder} is a run of {app}; {entry.id} is drawn from runs of {apps}")
        data, backbone, method = (result[name] for name in ("data", "backbone", "method"))
        group = next((g for g in groups if g.backbone == backbone), groups[0])
        runs = panels.setdefault(group.name_panel(data, backbone), {})
        label = group.label_run(data, backbone, method)
        runs[f"{label} {result['hash']}" if label in runs else label] = [folder]
    return panels


@dataclass
class DrawnModel:
    """A network in evaluation mode, a batch of it, and the mask that the batch does not hold."""

    label: str
    network: Any
    batch: Any
    mask: Tensor | None = None
    method: str = ""
    weights: str = ""
    folder: Path | None = None  # where its run is
    trust: Sequence[str] | str = ()  # classes that its config may name

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis of the network; UserError, in one sentence, where it has none."""
        with convert_user_errors(ValueError, prefix=f"{self.label}: "):
            return diagnose(self.network, self.batch, mask=self.mask, mechanisms=[])

    def average_batches(self, measure: str) -> list[float]:
        """Return a measure of tokens by depth, as the mean over all validation data of a run."""
        if self.folder is None:
            return self.diagnosis.curve(measure)
        network, batches, _ = load_run(str(self.folder), [], None, self.trust)
        reports = [
            diagnose(network, batch, mask=mask, measures="light")
            for batch, mask in track(batches, self.label, transient=True)
        ]
        curves, counts = zip(*((r.curve(measure), r.num_samples) for r in reports), strict=True)
        return np.average(curves, axis=0, weights=counts).tolist()

    @cached_property
    def maps(self) -> list[LayerMaps]:
        """The maps (H, N, N) of every layer for the first sample, without its padding."""
        inputs = ModelInputs(self.network, self.batch)
        with convert_user_errors(ValueError, prefix=f"{self.label}: "), prepare_model(self.network):
            found = collect_maps(self.network, inputs)

        def crop(M: Tensor) -> Tensor:
            shape = len(M), M.shape[-1]
            mask = inputs.find_mask(False, shape) if self.mask is None else self.mask
            is_fit = mask is not None and mask.shape == shape
            valid = mask[0] if mask is not None and is_fit else slice(None)
            return M[0].float()[..., valid, :][..., valid]

        return [LayerMaps(crop(layer.A), crop(layer.H), layer.projected) for layer in found]


def load_run_model(label: str, folder: Path, trust: Sequence[str] | str = ()) -> DrawnModel:
    """Load the best epoch of a run, with a batch of its validation data."""
    network, batches, _ = load_run(str(folder), [], SAMPLES, trust)
    method = (read_result(folder) or {}).get("method", "")
    return DrawnModel(label, network, *next(batches), method, folder=folder, trust=trust)


def load_model(name: str, backbone: str, trust: Sequence[str] | str = ()) -> DrawnModel:
    """Load a model by its name, as timm:NAME, with samples that are made, or those of its run."""
    kind, _, rest = name.partition(":")
    if kind == "run" and rest:
        return load_run_model(rest, Path(rest), trust)
    source = load_source(name, backbone=backbone)
    batch, _ = source.make_batch([], SAMPLES)
    return DrawnModel(Path(rest).name, source.network, batch, weights=source.weights)
