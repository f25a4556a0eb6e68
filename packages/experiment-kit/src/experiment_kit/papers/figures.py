"""Printed figures, an entry each in `figures.yaml`: the runs that they show, and their drawings."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain, product
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import torch
from attention_core import diagnose, plots, spectral
from attention_core.diagnosis import Diagnosis
from attention_core.diagnosis.batches import ModelInputs
from attention_core.diagnosis.diagnose import prepare_model
from attention_core.diagnosis.run import LayerMaps, collect_maps
from attention_core.plots.panels import make_panels
from attention_core.theory import bound_power_error
from matplotlib.figure import Figure
from torch import Tensor

from experiment_kit.app_files import read_settings
from experiment_kit.diagnosis.model_sources import SAMPLES
from experiment_kit.errors import UserError, check_name, convert_user_errors
from experiment_kit.pages.tables import MeanDeviation
from experiment_kit.papers.results import open_results
from experiment_kit.papers.spec import ALL, find_spec
from experiment_kit.papers.values import PaperTable, load_table
from experiment_kit.run import Run
from experiment_kit.run_files import try_read

ORDERS = range(2, 11)  # K
MAX_COLUMNS = 6  # attention maps side by side


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

    `printed` says what the figure of the paper needs besides this command. `samples` are drawn of
    each run; 0 draws all of its validation data.
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
    if name not in entries and name.rpartition("-")[0] in papers.values():
        raise UserError(f"{name} is no figure of this command: docs/figures.md has the others")
    check_name(name, [*dict.fromkeys(papers.values()), ALL, *entries], "figure or paper")
    return {key: e for key, e in entries.items() if name in (ALL, papers[key], key)}


def find_runs(group: RunGroup, folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Return a run of each method in a folder, by label, and notes on what the printed one has.

    The runs are those of the printed setting, else of the setting with the most methods. Of several
    seeds the lowest is taken.
    """
    known = {run: result for run in Run.find_all(folder, group.app)
             if run.has_result and (result := try_read(run.read_result))}  # fmt: skip
    found: dict[tuple[str, str, str], dict[str, Path]] = defaultdict(dict)
    for run, result in sorted(known.items(), key=lambda pair: -pair[1]["seed"]):
        if result["method"] in group.methods:
            setting = result["data"], result["backbone"], result["profile"]
            found[setting][result["method"]] = run.folder
    command = f"make {group.app} PROFILE=paper DATA={group.data} BACKBONE={group.backbone} "
    command += f"METHOD={','.join(group.methods)}{group.recipe and f' RECIPE={group.recipe}'}"
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


Models = Mapping[str, DrawnModel]  # by their labels


def draw_smoothing(models: Models, width: float) -> Figure:
    """Draw response, signed cosine, singular values, and the gain at the singular values of A."""
    measured = {}
    for label, model in models.items():
        last = model.diagnosis.layers[-1].output
        sigma, gains = spectral.singular_response(model.maps[-1].A, model.maps[-1].H)
        measured[label] = {
            "response": torch.tensor(model.diagnosis.layers[-1].responses).mean(0).tolist(),
            "signed_token_cosine": model.diagnosis.curve("signed_token_cosine"),
            "singular_values": last.singular_values if last else [],
            "singular_response": (sigma.mean(0).tolist(), gains.mean(0).tolist()),
        }
    return plots.plot_smoothing(measured, width=width)


def draw_power_error(models: Models, width: float) -> Figure:
    """Draw E_K of the last layer's maps, the printed bound 2K, and the tighter one of `theory`."""
    found: dict[str, Any] = {}
    for label, model in models.items():
        bounds = [bound_power_error(model.maps[-1].A.double(), K) for K in ORDERS]
        found[label] = {
            "bound of the paper, 2K": (ORDERS, [2 * K for K in ORDERS]),
            "tighter bound": (ORDERS, [bound.upper.mean().item() for bound in bounds]),
            "measured": (ORDERS, [bound.measured.mean().item() for bound in bounds]),
        }
    return plots.plot_curves(found, "K", "E_K", width=width)


def draw_spectra(models: Models, width: float) -> Figure:
    """Draw the response of every head of the first model for one sample."""
    maps = [layer.H for layer in next(iter(models.values())).maps]
    half = maps[0].shape[-1] // 2 + 1
    grid = [spectral.dft_response(H)[..., :half].tolist() for H in maps]
    return plots.plot_spectra_grid(grid, width)


def draw_cosines(models: Models, width: float) -> Figure:
    """Draw the cosines of maps and of tokens by depth."""
    curves: dict[str, Any] = {"|cosine| of columns of the maps": {},
                              "|cosine| of pairs of tokens": {}}  # fmt: skip
    of_maps, of_tokens = curves.values()
    for label, model in models.items():
        cosines = [spectral.map_cosine(layer.H).item() for layer in model.maps]
        of_maps[label] = (range(1, len(cosines) + 1), cosines)
        of_tokens[label] = model.average_curve("token_cosine")
    return plots.plot_curves(curves, "layer (0: embedding)", width=width)


def draw_attention_maps(models: Models, width: float) -> Figure:
    """Draw the maps of the first head in some layers for one sample, pooled by their maximum."""
    first = next(iter(models.values())).maps
    count = min(len(first), MAX_COLUMNS)
    layers = [round((i + 1) * len(first) / count) for i in range(count)]  # up to the last one
    maps = {
        label: {f"layer {i}": model.maps[i - 1].H[0].tolist() for i in layers}
        for label, model in models.items()
    }
    return plots.plot_attention_maps(maps, max(1, min(4, first[0].A.shape[-1] // 16)), width)


def draw_depth(models: Models, width: float, measure: str) -> Figure:
    """Draw a measure of the tokens by depth."""
    curves = {label: model.average_curve(measure) for label, model in models.items()}
    name = {"hfc_share": "|HC X| / |X|", "hfc_lfc": "HFC/LFC of the tokens"}[measure]
    return plots.plot_curves({"": curves}, "block (0: embedding)", name, width=min(width, 4.5))


def draw_gains(results: Path, width: float, pairs: list[dict[str, Any]]) -> Figure:
    """Draw the relative gain of each domain: in the text, in the table, and measured here."""
    names, noise, rows = [], [], []
    for pair in reversed(pairs):
        paper = load_table(pair["table"])
        better = bool(paper.columns[pair["column"]].higher_is_better)
        printed = [paper.find_row(row).values[pair["column"]] for row in pair["rows"][0]]
        name, gain = _measure_gain(results, paper, pair, better)
        if gain and abs(gain.mean) <= gain.half_width:
            noise.append(pair["domain"])
            name, gain = "", None
        names.append(f"{pair['domain']}\n{name}" if name else pair["domain"])
        ours = (gain.mean, gain.half_width) if gain else (torch.nan, torch.nan)
        rows.append((pair["text"], compute_gain(printed[0], printed[1], better), *ours))
    text, table, measured, errors = zip(*rows, strict=True)
    figure, axes = make_panels(1, width=width, height=4.2)
    axis = next(axes)
    bars = {"text of the paper": text, "its table": table, "measured here": measured}
    bars = {label: gains for label, gains in bars.items() if not np.isnan(gains).all()}
    for i, (label, gains) in enumerate(bars.items()):
        places = [place + ((len(bars) - 1) / 2 - i) * 0.27 for place in range(len(names))]
        xerr = errors if gains is measured else None
        axis.barh(places, gains, 0.27, label=label, xerr=xerr, ecolor="0.4")
    axis.set(xlabel="relative gain by GFSA, %", ylabel="domain")
    left_out = f"measured, and left out as the interval holds 0: {', '.join(noise)}"
    figure.supxlabel(fill(left_out, int(14 * width)) if noise else "", fontsize=8)
    axis.set_yticks(range(len(names)), names)
    axis.grid(visible=True, axis="x")
    axis.grid(visible=False, axis="y")
    axis.axvline(0, color="0.5", linewidth=0.8)
    plots.add_legend(figure)
    return figure


def compute_gain(before: float, after: float, higher_is_better: bool) -> float:
    """Return the relative improvement in percent."""
    change = (after - before) / abs(before)
    return 100 * (change if higher_is_better else -change)


def _measure_gain(
    results: Path, paper: PaperTable, pair: Mapping[str, Any], better: bool
) -> tuple[str, MeanDeviation | None]:
    """Return our gain, paired by seed, of the first measured pair of rows, and its name."""
    found = open_results(results, find_spec(paper.id))
    columns = dict.fromkeys([pair["column"], *sorted(paper.columns)])
    for (base, row), setting, column in product(pair["rows"], found.conditions, columns):
        runs = found.select_runs(*setting)
        seeds = runs[runs["column"] == column].pivot(index="seed", columns="row", values="value")
        values = seeds.reindex(columns=[base, row]).dropna()
        if len(values) and values[base].all():  # there is no relative gain over 0
            gains = [compute_gain(x, y, better) for x, y in values.to_numpy().tolist()]
            name = f"{found.spec.labels[row]}\n{paper.columns[column].name}, {setting[0]}"
            return name, MeanDeviation.from_values(gains)
    return "", None


# each takes models, or else the folder of results; then the width, and the options of the entry
DRAWINGS: dict[str, Callable[..., Figure]] = {
    "smoothing": draw_smoothing, "power_error": draw_power_error, "spectra": draw_spectra,
    "cosines": draw_cosines, "attention_maps": draw_attention_maps, "depth": draw_depth,
    "gains": draw_gains,
}  # fmt: skip
