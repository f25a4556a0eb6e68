"""Figures of runs side by side, for pages."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from attention_core.plots import Lines
from attention_core.plots.panels import DASHES, SERIES
from markupsafe import Markup
from matplotlib.figure import Figure

from experiment_kit.pages import plots
from experiment_kit.pages.records import RunRecord, summarize_seeds
from experiment_kit.pages.template import embed_figure
from experiment_kit.run_files import warn_once

LOSSES = ("train/loss", "val/loss")
MIN_SMOOTHED = 40  # steps
COLORS = len(SERIES["light"])


@dataclass(frozen=True)
class PageFigure:
    """A figure of a page: an image, which is empty where there is none, and a caption."""

    image: Markup
    caption: str


@dataclass(frozen=True)
class FigureKind:
    """A figure: its drawing, the average of runs that it shows, and the file that they write."""

    plot: Callable[..., Figure]
    average: Callable[[Sequence[RunRecord]], Any]
    name: str
    file: str
    caption: str

    def draw(
        self, methods: Mapping[str, Sequence[RunRecord]], lines: Lines, title: str
    ) -> PageFigure:
        """Draw the runs of each method; the caption names those without the file."""
        found = {method: data for method, runs in methods.items() if (data := self.average(runs))}
        absent = ", ".join(method for method in methods if method not in found)
        missing = f"No {self.name} of {absent}: {self.file} is missing." if absent else ""
        if not found:
            return PageFigure(Markup(), missing)
        label = f"{self.name}, {title}"
        image = embed_figure(lambda _: self.plot(found, lines=lines, width=plots.WIDTH), label)
        return PageFigure(image, f"{self.caption} {missing}".strip())


@dataclass(frozen=True)
class FigureSet:
    """The figures of the runs on one data set; `legend` gives the CSS of each method's line."""

    legend: Mapping[str, str]
    figures: Sequence[PageFigure]


def draw_figures(records: Sequence[RunRecord], labels: Mapping[str, str], title: str) -> FigureSet:
    """Draw the records; a label keeps its color and dash on every data set."""
    order = {label: i for i, label in enumerate(labels.values())}
    methods: dict[str, list[RunRecord]] = defaultdict(list)
    for record in sorted(records, key=lambda record: order[labels[record.label]]):
        methods[labels[record.label]].append(record)
    # neighbors have other dashes, so that a line shows where another one covers it
    dashes = {i: DASHES[(i + i // COLORS) % len(DASHES)] for i in order.values()}
    lines = {
        method: {"color": f"C{i % COLORS}", "linestyle": dashes[i]} for method, i in order.items()
    }
    legend = {
        method: f"border-top: 3px {dashes[i]} var(--series-{i % COLORS})"
        for method, i in order.items()
        if method in methods
    }
    return FigureSet(legend, [kind.draw(methods, lines, title) for kind in FIGURES])


def average_curves(records: Sequence[RunRecord]) -> dict[str, pd.DataFrame]:
    """Average the losses, and on validation data the metrics that the runs have on test data."""
    metrics = (name for r in records for name in r.result.get("metrics", ()))
    tested = (f"val/{name.removeprefix('test/')}" for name in metrics if name.startswith("test/"))
    tags = dict.fromkeys((*LOSSES, *tested))
    seeds = {tag: [r.scalars[tag] for r in records if tag in r.scalars] for tag in tags}
    frames = {tag: summarize_seeds(series) for tag, series in seeds.items() if series}
    return {
        tag: smooth_curve(frame) if tag.startswith("train/") else frame
        for tag, frame in frames.items()
        if not frame.empty
    }


def smooth_curve(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the running mean over a twentieth of the steps, and the mean before as `raw`.

    A curve of fewer than 40 steps stays as it is.

    >>> frame = pd.DataFrame({"mean": [0.0, 2.0] * 50, "low": 0.0, "high": 2.0})
    >>> float(smooth_curve(frame)["mean"].iloc[50])
    0.8
    """
    if len(frame) < MIN_SMOOTHED:
        return frame
    window = max(3, len(frame) // 20)
    smooth = frame.rolling(window, center=True, min_periods=1).mean()
    return smooth.assign(raw=frame["mean"])


def _average_depth(records: Sequence[RunRecord]) -> dict[str, np.ndarray]:
    found = _list_alike(records, "depth")
    return {
        name: np.mean([[layer.get(name, np.nan) for layer in depth] for depth in found], axis=0)
        for name in (plots.MEASURES if found else ())
    }


def _average_responses(records: Sequence[RunRecord]) -> list[np.ndarray]:
    found = _list_alike(records, "response")
    return [np.mean(np.array(layer, dtype=float), axis=0) for layer in zip(*found, strict=True)]


def _list_alike(records: Sequence[RunRecord], name: str) -> list[Any]:
    """Return a spectral measure of the runs whose layers are as those of the first one."""
    found = [r.spectral[name] for r in records if r.spectral.get(name)]
    alike = [layers for layers in found if [*map(len, layers)] == [*map(len, found[0])]]
    if len(alike) < len(found):
        warn_once(f"{len(found) - len(alike)} runs of {records[0].label} are left out of a figure: "
                  f"their spectral.json has other layers; train them again")  # fmt: skip
    return alike


FIGURES = (
    FigureKind(
        plots.plot_training_curves, average_curves, "training curves", "tensorboard/",
        "Training: the line is the mean over seeds, the band reaches from the lowest to the "
        "highest; a line ends at the last step that every seed reached. A training loss of many "
        "steps is a running mean over a twentieth of them; the faint line is not.",
    ),
    FigureKind(
        plots.plot_depth_profiles, _average_depth, "depth profile", "spectral.json",
        "Depth: block 0 is the embedding; mean over seeds. A falling ratio, cosines near 1 and a "
        "falling rank show over-smoothing.",
    ),
    FigureKind(
        plots.plot_frequency_responses, _average_responses, "response", "spectral.json",
        "Frequency response: the row norms of F H F⁻¹, mean over heads, batch and seeds. Faint "
        "lines are early layers, strong lines late ones.",
    ),
)  # fmt: skip
