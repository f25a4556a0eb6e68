"""Printed figures, an entry each in `figures.yaml`, and the runs and models that they show."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from attention_core import diagnose
from attention_core.diagnosis import Diagnosis
from attention_core.diagnosis.batches import ModelInputs
from attention_core.diagnosis.diagnose import prepare_model
from attention_core.diagnosis.run import LayerMaps, collect_maps
from torch import Tensor

from experiment_kit.app_files import read_settings
from experiment_kit.diagnosis.model_sources import SAMPLES
from experiment_kit.errors import convert_user_errors
from experiment_kit.papers.spec import ALL
from experiment_kit.papers.values import check_name
from experiment_kit.run import Run
from experiment_kit.run_files import try_read


@dataclass(frozen=True)
class RunGroup:
    """Runs of a figure: methods of one backbone on one data set, with their labels."""

    app: str
    data: str
    backbone: str
    methods: Mapping[str, str]
    recipe: str = ""


@dataclass(frozen=True)
class FigureEntry:
    """A printed figure: its drawing, that drawing's options, and the groups of runs it shows.

    `printed` says what the printed one needs beyond a command, `samples` how many of a run are
    drawn, 0 for all of its validation data.
    """

    caption: str
    draw: str
    printed: str
    groups: tuple[RunGroup, ...] = ()
    samples: int = SAMPLES
    options: Mapping[str, Any] = field(default_factory=dict)


@cache
def _read_entries() -> dict[str, FigureEntry]:
    entries = {}
    for name, entry in read_settings(Path(__file__).with_name("figures.yaml")).items():
        groups = tuple(RunGroup(**group) for group in entry.get("groups", ()))
        entries[name] = FigureEntry(**{**entry, "groups": groups})
    return entries


def find_figures(name: str) -> dict[str, FigureEntry]:
    """Return a figure, the figures of a paper, or all, by id; UserError for an unknown name."""
    entries, name = _read_entries(), name.replace("_", "-")
    papers = {key: key.rpartition("-")[0] for key in entries}
    check_name(name, [*dict.fromkeys(papers.values()), ALL, *entries], "figure or paper")
    return {key: e for key, e in entries.items() if name in (ALL, papers[key], key)}


def find_runs(group: RunGroup, folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Return a run of each method in a folder, by label, and notes on what the printed one has.

    They are those of the printed setting, else of that which has the most methods; of several
    seeds the lowest.
    """
    results = {run: try_read(run.read_result) for run in Run.find_all(folder, group.app)
               if run.has_result}  # fmt: skip
    known = {run: result for run, result in results.items() if result}
    found: dict[tuple[str, str, str], dict[str, Path]] = defaultdict(dict)
    for run, result in sorted(known.items(), key=lambda pair: -pair[1]["seed"]):
        if result["method"] in group.methods:
            setting = result["data"], result["backbone"], result["profile"]
            found[setting][result["method"]] = run.folder
    command = f"make {group.app} DATA={group.data} BACKBONE={group.backbone} "
    command += f"METHOD={','.join(group.methods)}{group.recipe and f' RECIPE={group.recipe}'}"
    command += " PROFILE=paper"
    if not found:
        return {}, [f"no run of {group.app} in {folder} has a method of this figure: {command} "
                    "makes them"]  # fmt: skip
    printed = group.data, group.backbone
    ranks = {s: (s[:2] == printed, s[2] == "paper", len(own), s) for s, own in found.items()}
    data, backbone, profile = setting = max(ranks, key=ranks.__getitem__)
    own, labels, notes = found[setting], group.methods, []
    if setting[:2] != printed:
        labels = {m: backbone if m == "plain" else f"{backbone} + {m}" for m in group.methods}
    if setting != (*printed, "paper"):
        scale = "" if profile == "paper" else f", profile {profile}"
        notes.append(f"drawn from runs of {backbone} on {data}{scale}, where the paper has "
                     f"{group.backbone} on {group.data}: {command} makes those")  # fmt: skip
    if absent := [label for method, label in group.methods.items() if method not in own]:
        notes.append(f"{', '.join(absent)} left out, as no such run is here: {command}")
    return {labels[method]: own[method] for method in group.methods if method in own}, notes


@dataclass
class DrawnModel:
    """A network in evaluation mode, a batch of it, and the mask that the batch does not hold.

    `others` are further batches with their masks.
    """

    label: str
    network: Any
    batch: Any
    mask: Tensor | None = None
    others: Iterable[tuple[Any, Tensor | None]] = ()

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis on the batch; UserError, in one sentence, where it has none."""
        with convert_user_errors(ValueError, prefix=f"{self.label}: "):
            return diagnose(self.network, self.batch, mask=self.mask, mechanisms=[])

    def average_curve(self, measure: str) -> list[float]:
        """Return a measure of tokens by depth, as the mean over the samples of all batches."""
        with convert_user_errors(ValueError, prefix=f"{self.label}: "):
            reports = [
                diagnose(self.network, batch, mask=mask, measures="light")
                for batch, mask in chain([(self.batch, self.mask)], self.others)
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
            valid = mask[0] if mask is not None and mask.shape == shape else slice(None)
            return M[0].float()[..., valid, :][..., valid]

        return [LayerMaps(crop(layer.A), crop(layer.H), layer.projected) for layer in found]
