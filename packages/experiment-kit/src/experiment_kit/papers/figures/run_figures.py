"""Figures that are drawn from what runs have written while they trained."""

import re
from collections.abc import Callable, Mapping, Sequence

import pandas as pd
from attention_core.plots.panels import use_log_scale
from matplotlib.figure import Figure

from experiment_kit.errors import UserError
from experiment_kit.pages.records import read_scalars, summarize_seeds
from experiment_kit.pages.run_figures import plot_training_curves
from experiment_kit.papers.figures.entries import FigureEntry, PanelRuns

RATIO = r"\w+/hfc_lfc/layer_(\d+)"
CONDITION, SPECTRUM = r"\w+/condition_number/layer_(\d+)", r"\w+/psi/layer_(\d+)(/mean)?"
LOSSES, EPOCH = ("train/loss", "val/loss"), "train/epoch"
Panels = dict[str, pd.DataFrame]  # the curves of a label by the title of their panel


def draw_training(entry: FigureEntry, panels: PanelRuns, width: float) -> Figure:
    """Draw the losses by epoch: the mean over seeds, with a band."""

    def summarize(seeds: Sequence[Mapping[str, pd.Series]]) -> Panels:
        runs = [_count_epochs(scalars) for scalars in seeds]
        series = {tag: [run[tag] for run in runs if tag in run] for tag in LOSSES}
        return {tag: summarize_seeds(found) for tag, found in series.items() if found}

    tags, what = "|".join([*LOSSES, EPOCH]), "losses in their folders"
    methods = _read_curves(entry, panels, tags, summarize, what)
    return plot_training_curves(methods, width=width, xlabel="epoch")


def draw_ratio_history(entry: FigureEntry, panels: PanelRuns, width: float) -> Figure:
    """Draw HFC/LFC of the last layer by step."""

    def summarize(seeds: Sequence[Mapping[str, pd.Series]]) -> Panels:
        last = [run[max(run, key=lambda tag: int(tag.rpartition("_")[2]))] for run in seeds if run]
        return {"HFC/LFC of the last layer's tokens": summarize_seeds(last)} if last else {}

    what = "measures of the monitor: train them with spectral"
    methods = _read_curves(entry, panels, RATIO, summarize, what)
    return plot_training_curves(methods, width=min(width, 4.5))


def draw_condition_history(entry: FigureEntry, panels: PanelRuns, width: float) -> Figure:
    """Draw the condition number of H and its eigenvalues psi by step: mean and range of layers."""
    names = {"condition number of H": CONDITION, "eigenvalues psi of H": SPECTRUM}

    def summarize(seeds: Sequence[Mapping[str, pd.Series]]) -> Panels:
        layers = {
            title: [series for tag, series in seeds[0].items() if re.fullmatch(pattern, tag)]
            for title, pattern in names.items()
        }
        return {title: summarize_seeds(found) for title, found in layers.items() if found}

    what = "condition numbers: the monitor of an older version did not log them"
    methods = _read_curves(entry, panels, f"{CONDITION}|{SPECTRUM}", summarize, what)
    figure = plot_training_curves(methods, width=width)
    figure.supylabel("mean and range over layers", fontsize=8)
    use_log_scale(figure.axes[0])
    return figure


def _read_curves(
    entry: FigureEntry, panels: PanelRuns, tags: str,
    summarize: Callable[[Sequence[Mapping[str, pd.Series]]], Panels], what: str,
) -> dict[str, Panels]:  # fmt: skip
    """Summarize the scalars whose tags match by label; UserError where none has any."""
    runs = {label: seeds for panel in panels.values() for label, seeds in panel.items()}
    read = {label: [read_scalars(run, tags) for run in seeds] for label, seeds in runs.items()}
    found = {label: summarize(seeds) for label, seeds in read.items()}
    if not any(found.values()):
        raise UserError(f"{entry.id} cannot be drawn: its runs have no {what}")
    return {label: curves for label, curves in found.items() if curves}


def _count_epochs(scalars: Mapping[str, pd.Series]) -> dict[str, pd.Series]:
    """Return the scalars by epoch, which loggers write beside them; by step where they do not."""
    epochs = scalars.get(EPOCH)
    steps = 1.0
    if epochs is not None and len(epochs):
        steps = (epochs.index[-1] + 1) / (epochs.iloc[-1] + 1)
    return {
        tag: pd.Series(series.to_numpy(), (series.index.to_numpy() + 1) / steps)
        for tag, series in scalars.items()
        if tag != EPOCH
    }


RUN_FIGURES: dict[str, Callable[[FigureEntry, PanelRuns, float], Figure]] = {
    "training": draw_training,
    "ratio_history": draw_ratio_history,
    "condition_history": draw_condition_history,
}
