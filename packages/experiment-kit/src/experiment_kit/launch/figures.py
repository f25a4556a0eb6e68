"""Figures of runs side by side, and the static HTML pages that show them."""

import base64
import io
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from experiment_kit.diagnostics import plots
from experiment_kit.launch.records import RunRecord, summarize_seeds
from experiment_kit.run import write_atomically
from experiment_kit.run_files import warn_once

TEMPLATES = Path(str(files("experiment_kit.launch"))) / "templates"
CURVES = ("train/loss", "val/loss", "val/accuracy")
DASHES = ["solid", "dashed", "dotted"]  # for matplotlib and for CSS
# the colors of page.css: figures are embedded as images, which CSS does not reach
INK = {"light": "#1c1c1a", "dark": "#ecebe6"}
GRID = {"light": "#d6d5cf", "dark": "#45443f"}
_LIGHT = "#2a78d6 #d9480f #12876a #b07d00 #9a3fb5 #c2255c #5f7d1e #5c5f66"
_DARK = "#6cb0ff #ff9a5c #3fc9a0 #f0c24b #d79bf0 #ff85ab #b3d35c #b4b7bf"
SERIES = {"light": _LIGHT.split(" "), "dark": _DARK.split(" ")}


@dataclass(frozen=True)
class FigureKind:
    """A figure: its drawing, the average of runs that it shows, and the file that they write."""

    plot: Callable[..., Figure]
    average: Callable[[Sequence[RunRecord]], Any]
    name: str
    file: str
    caption: str


@dataclass(frozen=True)
class FigureImages:
    """One figure for a page: an image for each theme, or none, and a caption."""

    images: Mapping[str, str]
    alt: str
    caption: str


@dataclass(frozen=True)
class FigureSet:
    """The figures of the runs on one data set; `legend` gives the CSS of each method's line."""

    legend: Mapping[str, str]
    figures: Sequence[FigureImages]


def draw_figures(records: Sequence[RunRecord], labels: Mapping[str, str], title: str) -> FigureSet:
    """Draw the records; a label keeps its color and dash on every data set."""
    order = {label: i for i, label in enumerate(labels.values())}
    methods: dict[str, list[RunRecord]] = defaultdict(list)
    for record in sorted(records, key=lambda record: order[labels[record.label]]):
        methods[labels[record.label]].append(record)
    figures = [_draw_figure(kind, methods, order, title) for kind in FIGURES]
    count = len(SERIES["light"])
    legend = {
        method: f"border-top: 3px {_dash(order[method])} var(--series-{order[method] % count})"
        for method in methods
    }
    return FigureSet(legend, figures)


def write_page(path: Path, template: Path, **context: Any) -> None:
    """Render a template, which may extend those of this package, into one file without links."""
    loader = FileSystemLoader([template.parent, TEMPLATES])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    write_atomically(path, environment.get_template(template.name).render(context))


def _draw_figure(
    kind: FigureKind,
    methods: Mapping[str, Sequence[RunRecord]],
    order: Mapping[str, int],
    title: str,
) -> FigureImages:
    found = {method: data for method, runs in methods.items() if (data := kind.average(runs))}
    absent = ", ".join(method for method in methods if method not in found)
    missing = f"No {kind.name} of {absent}: {kind.file} is missing." if absent else ""
    if not found:
        return FigureImages({}, "", missing)
    images = {}
    for theme, series in SERIES.items():
        lines = {
            method: {"color": series[i % len(series)], "linestyle": _dash(i)}
            for method, i in order.items()
        }
        with rc_context(_style(INK[theme], GRID[theme])):
            buffer = io.BytesIO()
            FigureCanvasSVG(kind.plot(found, lines)).print_svg(buffer, metadata={"Date": None})
        encoded = base64.b64encode(buffer.getvalue()).decode()
        images[theme] = f"data:image/svg+xml;base64,{encoded}"
    return FigureImages(images, f"{kind.name}, {title}", f"{kind.caption} {missing}".strip())


def _dash(index: int) -> str:
    return DASHES[index // len(SERIES["light"]) % len(DASHES)]


def _style(ink: str, grid: str) -> Any:
    texts = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.labelcolor")
    lines = ("axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
    return {
        **dict.fromkeys((*texts, "ytick.labelcolor"), ink),
        **dict.fromkeys(lines, grid),
        **dict.fromkeys(("font.size", "axes.titlesize"), 9),
        **dict.fromkeys(("axes.labelsize", "xtick.labelsize", "ytick.labelsize"), 8),
        **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
        **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
        **dict.fromkeys(("grid.linewidth", "axes.linewidth"), 0.6),
        "axes.grid.axis": "y",
        "axes.titlelocation": "left",
        "lines.linewidth": 1.6,
        "svg.fonttype": "none",  # text stays text: small, and in a font of the reader
    }


def _average_curves(records: Sequence[RunRecord]) -> dict[str, pd.DataFrame]:
    seeds = {tag: [r.scalars[tag] for r in records if tag in r.scalars] for tag in CURVES}
    frames = {tag: summarize_seeds(series) for tag, series in seeds.items() if series}
    return {tag: frame for tag, frame in frames.items() if not frame.empty}


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
        plots.plot_training_curves, _average_curves, "training curves", "tensorboard/",
        "Training: the line is the mean over seeds, the band reaches from the lowest to the "
        "highest; a line ends at the last step that every seed reached.",
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
