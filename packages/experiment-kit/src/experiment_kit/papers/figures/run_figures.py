"""Figures that are drawn from what runs have written while they trained."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from attention_core import plots
from attention_core.plots.depth import NAMED_MARKERS
from attention_core.plots.panels import get_line, make_panels, show_integers, use_log_scale
from matplotlib.figure import Figure

from experiment_kit.cli import read_option
from experiment_kit.errors import UserError
from experiment_kit.pages.records import read_config, read_scalars, summarize_seeds
from experiment_kit.pages.run_figures import draw_band, plot_training_curves
from experiment_kit.papers.figures.entries import FigureEntry, PanelRuns
from experiment_kit.papers.results import TableResults, open_results
from experiment_kit.papers.spec import find_spec
from experiment_kit.run import Run
from experiment_kit.run_files import is_finite, try_read

RATIO = r"\w+/hfc_lfc/layer_(\d+)"
CONDITION = r"\w+/condition_number/layer_(\d+)"
SPECTRUM = r"\w+/psi/layer_(\d+)/mean"
LOSSES = ("train/loss", "val/loss")
Scalars = Mapping[str, pd.Series]


@dataclass(frozen=True)
class RunSources:
    """The runs of each panel, the folder that has them, and the folder of published results."""

    panels: Sequence[PanelRuns]
    folder: Path
    results: Path


def draw_training(entry: FigureEntry, sources: RunSources, width: float) -> Figure:
    """Draw the losses by epoch: the mean over seeds, with a band."""
    methods: dict[str, dict[str, pd.DataFrame]] = {}
    for label, seeds in _read_runs(sources, "|".join([*LOSSES, "epoch"])).items():
        runs = [_count_epochs(scalars) for scalars in seeds]
        series = {tag: [run[tag] for run in runs if tag in run] for tag in LOSSES}
        methods[label] = {tag: summarize_seeds(found) for tag, found in series.items() if found}
    _refuse_empty(entry, any(methods.values()), "losses in their tensorboard folder")
    return plot_training_curves(methods, width=width, xlabel="epoch")


def draw_ratio_history(entry: FigureEntry, sources: RunSources, width: float) -> Figure:
    """Draw HFC/LFC of the last layer by step."""
    curves = {}
    for label, seeds in _read_runs(sources, RATIO).items():
        last = [run[max(run, key=lambda tag: int(tag.rpartition("_")[2]))] for run in seeds if run]
        if last:
            curves[label] = _make_curve(summarize_seeds(last)["mean"])
    _refuse_empty(entry, bool(curves), "measures of the monitor: train them with spectral")
    panel = {"last layer": curves}
    return plots.plot_curves(
        panel, "optimizer step", "HFC/LFC of the tokens", width=min(width, 4.5)
    )


def draw_condition_history(entry: FigureEntry, sources: RunSources, width: float) -> Figure:
    """Draw the condition number of H and its eigenvalues psi by step, as means over layers."""
    scalars = _read_runs(sources, f"{CONDITION}|{SPECTRUM}")
    labels = [*scalars]
    found: dict[str, dict[str, pd.DataFrame]] = {CONDITION: {}, SPECTRUM: {}}
    for pattern, curves in found.items():
        for label, (first, *_) in scalars.items():
            layers = [series for tag, series in first.items() if re.fullmatch(pattern, tag)]
            if layers:
                curves[label] = summarize_seeds(layers)
    what = "condition numbers: the monitor of an older version did not log them"
    _refuse_empty(entry, bool(found[CONDITION]), what)
    names = {CONDITION: "condition number of H", SPECTRUM: "eigenvalues psi of H"}
    shown = {pattern: curves for pattern, curves in found.items() if curves}
    figure, axes = make_panels(len(shown), width=width if len(shown) > 1 else min(width, 4.5))
    for axis, (pattern, curves) in zip(axes, shown.items(), strict=True):
        for label, frame in curves.items():
            line = get_line(None, labels, label)
            marker = "o" if len(frame) <= NAMED_MARKERS else ""
            axis.plot(frame.index, frame["mean"], label=label, marker=marker, markersize=3, **line)
            draw_band(axis, frame, line)
        axis.set(title=names[pattern], ylabel="mean and range over layers")
        if pattern == CONDITION:
            use_log_scale(axis)
        show_integers(axis, "optimizer step")
    plots.add_legend(figure, labels)
    return figure


def draw_sweep(entry: FigureEntry, sources: RunSources, width: float) -> Figure:
    """Draw the score of each task by K, from the runs of the grid and the results of its table."""
    results = open_results(sources.results, find_spec(entry.table))
    spec, paper, published = results.spec, results.paper, _read_orders(results)
    app, (method,) = entry.groups[0].app, entry.groups[0].methods
    panels = {}
    for column, setting in spec.columns.items():
        metric, scale = setting.metric, spec.default.scale or 1.0
        found = published.get(column, {})
        for run in Run.find_all(sources.folder, app):
            result = try_read(run.read_result) or {}
            if (result.get("data"), result.get("method")) == (setting.data, method):
                config = try_read(read_config, run.folder / "config.yaml")
                order = read_option(config, "model.filter.init_args.K")
                if isinstance(order, int) and is_finite(score := result["metrics"].get(metric)):
                    found.setdefault(f"{result['backbone']}, {result['profile']}", {})[order] = (
                        score * scale
                    )
        curves = {label: _make_curve(pd.Series(p).sort_index()) for label, p in found.items()}
        panels[paper.columns[column].name] = {m: c for m, c in curves.items() if len(c[0]) > 1}
    panels = {title: curves for title, curves in panels.items() if curves}
    _refuse_empty(entry, bool(panels), "two orders K of one task")
    return plots.plot_curves(panels, "K", "validation score", width=width)


def _read_orders(results: TableResults) -> dict[str, dict[str, dict[int, float]]]:
    """Return the published scores of the rows K2, K3, ... by column, setting and K."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for profile, protocol in results.settings:
        for (row, column), mean in results.list_means(profile, protocol).items():
            if order := re.fullmatch(r"K(\d+)", row):
                curves = found.setdefault(column, {})
                curves.setdefault(f"bert_base, {profile}", {})[int(order[1])] = mean
    return found


def _read_runs(sources: RunSources, tags: str) -> dict[str, list[Scalars]]:
    """Return the scalars of the runs whose tags match, by label, one mapping a seed."""
    return {
        label: [read_scalars(folder, tags) for folder in folders]
        for panel in sources.panels
        for label, folders in panel.runs.items()
    }


def _count_epochs(scalars: Scalars) -> dict[str, pd.Series]:
    """Return the scalars by epoch, which loggers write beside them; by step where they do not."""
    epochs = scalars.get("epoch")
    steps = 1.0
    if epochs is not None and len(epochs):
        steps = (epochs.index[-1] + 1) / (epochs.iloc[-1] + 1)
    return {
        tag: pd.Series(series.to_numpy(), (series.index.to_numpy() + 1) / steps)
        for tag, series in scalars.items()
        if tag != "epoch"
    }


def _make_curve(series: pd.Series) -> tuple[list[float], list[float]]:
    return series.index.tolist(), series.tolist()


def _refuse_empty(entry: FigureEntry, found: bool, what: str) -> None:
    if not found:
        raise UserError(f"{entry.id} cannot be drawn: its runs have no {what}")


RUN_FIGURES: dict[str, Callable[[FigureEntry, RunSources, float], Figure]] = {
    "training": draw_training,
    "ratio_history": draw_ratio_history,
    "condition_history": draw_condition_history,
    "sweep": draw_sweep,
}
