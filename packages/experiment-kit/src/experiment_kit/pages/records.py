"""Finished runs on a page: the files that they leave, tables of them, and their figures."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from attention_core import plots
from attention_core.plots.depth import PROFILE
from attention_core.plots.panels import DASHES, get_line, show_integers
from markupsafe import Markup
from matplotlib.figure import Figure

from experiment_kit.pages.tables import MISSING, PageTable, embed_figure, link_file
from experiment_kit.run import select_settings
from experiment_kit.run_files import is_finite, read_config, read_mapping, read_result, try_read

FILES = ("config.yaml", "environment.yaml", "log.txt", "result.json")  # that a run leaves
_SHOWN = "train/loss|val/(?!smoothing).*"
Curve = TypeVar("Curve", pd.Series, pd.DataFrame)
LOSSES = ("train/loss", "val/loss")
MIN_SMOOTHED = 40  # steps
MAX_POINTS = 200  # more points of a curve are not visible, and make a page large
WIDTH = 9.6  # inches, of a page
_CURVES = (
    "Training: the line is the mean over seeds, the band reaches from the lowest to the highest; a "
    "line ends at the last step that every seed reached. A training loss of many steps is a "
    "running mean over a twentieth of them."
)
_DEPTH = (
    "Depth: block 0 is the embedding; mean over seeds. A falling ratio, cosines near 1 and a "
    "falling rank show over-smoothing."
)
_GAINS = (
    "Frequency response: the row norms of F H F⁻¹, mean over heads, batch and seeds. Faint lines "
    "are early layers, strong lines late ones."
)


@dataclass(frozen=True)
class RunRecord:
    """One finished run of a method or a row; files that it did not write are empty here."""

    label: str
    result: dict[str, Any]
    scalars: dict[str, pd.Series] = field(default_factory=dict)
    spectral: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None


@dataclass(frozen=True)
class PageFigure:
    """A figure of a page, or an empty image, and a caption."""

    image: Markup
    caption: str


def read_run_record(label: str, folder: Path, **expected: str) -> RunRecord | None:
    """Read the folder of a run; None if it has no result. A bad file is left out with a warning."""
    result = try_read(read_result, folder, **expected)
    if result is None:
        return None
    config = try_read(read_config, folder / "config.yaml")
    spectral = try_read(read_mapping, folder / "spectral.json", "delete it")
    return RunRecord(label, result, read_scalars(folder), spectral or {}, config or {}, folder)


def read_scalars(folder: Path, tags: str = _SHOWN) -> dict[str, pd.Series]:
    """Read the scalars of a run whose tags match, over steps."""
    # here, since tensorboard takes a second to import
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    written: dict[str, list[tuple[float, int, float]]] = {}
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if re.fullmatch(tags, value.tag):
                    point = event.wall_time, event.step, value.simple_value
                    written.setdefault(value.tag, []).append(point)
    return {
        tag: pd.Series({step: value for _, step, value in sorted(events)}, dtype=float).sort_index()
        for tag, events in written.items()
    }


def thin_curve(curve: Curve, points: int) -> Curve:
    """Return up to so many steps of a curve, evenly spaced from the first to the last."""
    places = np.linspace(0, len(curve) - 1, min(len(curve), points)).round()
    return curve.iloc[places.astype(int)]


def tabulate_runs(records: Sequence[RunRecord], page: Path) -> PageTable:
    """Return a table of the runs, one line each, with links relative to the page."""
    metrics = list(dict.fromkeys(name for r in records for name in r.result["metrics"]))
    rows = []
    for record in records:
        seed, environment = record.result["seed"], record.result.get("environment") or {}
        values = map(record.result["metrics"].get, metrics)
        numbers = (f"{value:.4g}" if is_finite(value) else MISSING for value in values)
        commit = str(environment.get("commit") or MISSING)[:10]
        commit += " modified" * bool(environment.get("modified"))
        files = [record.folder / name for name in FILES if record.folder]
        link = Markup('<a href="{}">{}</a>').format
        links = (link(link_file(x, page), x.stem) if x.is_file() else MISSING for x in files)
        rows.append([record.label, str(seed), *numbers, commit, *links])
    head = ["run", "seed", *metrics, "commit", *(Path(name).stem for name in FILES)]
    return PageTable("runs", head, rows)


def compare_settings(configs: Mapping[str, Mapping[str, Any]]) -> PageTable:
    """Return a table of the settings in which configs differ, without seeds."""
    flat = [flatten_settings(config) for config in configs.values()]
    names = dict.fromkeys(name for settings in flat for name in settings)
    rows = [[name, *(settings.get(name, MISSING) for settings in flat)] for name in names]
    differing = [row for row in rows if len({*row[1:]}) > 1]
    return PageTable("settings that differ", ["setting", *configs], differing)


def flatten_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a run as text, without seeds and what is not set."""
    settings = select_settings(config)
    seed = settings.pop("seed_everything", None)
    (flat,) = pd.json_normalize(settings).to_dict("records")
    texts = {
        re.sub(r"\.(class_path|init_args)\b", "", str(key)): value
        if isinstance(value, str)
        else json.dumps(value, default=str)
        for key, value in flat.items()
        if value is not None
    }
    if texts.get("data.seed") == str(seed):  # linked to that of the run
        del texts["data.seed"]
    return texts


def draw_figures(
    methods: Sequence[str], records: Sequence[RunRecord], title: str
) -> list[PageFigure]:
    """Draw the records; a method has one color and dash in all figures."""
    # neighbors have other dashes, so that a line shows where another one covers it
    lines = {
        method: {**get_line(None, methods, method), "linestyle": DASHES[i % len(DASHES)]}
        for i, method in enumerate(methods)
    }
    runs = {method: [r for r in records if r.label == method] for method in methods}
    finished = {method: found for method, found in runs.items() if found}
    figures = (
        ("training curves", "events.out.*", average_curves, plot_training_curves, _CURVES),
        ("depth profile", "spectral.json", _average_depth, plots.plot_depth_profiles, _DEPTH),
        ("response", "spectral.json", _average_responses, plots.plot_frequency_responses, _GAINS),
    )
    return [_draw_figure(finished, lines, title, *figure) for figure in figures]


def _draw_figure(
    runs: Mapping[str, Sequence[RunRecord]], lines: plots.Lines, title: str, name: str, file: str,
    average: Callable[[Sequence[RunRecord]], Any], plot: Callable[..., Figure], caption: str,
) -> PageFigure:  # fmt: skip
    """Draw the averages over the runs of each method; the caption names those without the file."""
    found = {method: data for method, seeds in runs.items() if (data := average(seeds))}
    lost = [record for seeds in runs.values() for record in seeds if not average([record])]
    ends = (f" seed {r.result['seed']}" if r.label in found else "" for r in lost)
    absent = ", ".join(dict.fromkeys(r.label + end for r, end in zip(lost, ends, strict=True)))
    missing = f"No {name} of {absent}: {file} is missing." if absent else ""
    if not found:
        return PageFigure(Markup(), missing)

    def draw_averages(_: str) -> Figure:
        figure = plot(found, lines=lines, width=WIDTH)
        plots.add_legend(figure, found)
        return figure

    image = embed_figure(draw_averages, f"{name}, {title}")
    return PageFigure(image, f"{caption} {missing}".strip())


def average_curves(records: Sequence[RunRecord]) -> dict[str, pd.DataFrame]:
    """Average the losses, and the validation curves of the metrics in the results."""
    metrics = (name for r in records for name in r.result.get("metrics", ()))
    tested = (f"val/{name.removeprefix('test/')}" for name in metrics if name.startswith("test/"))
    tags = dict.fromkeys((*LOSSES, *tested))
    frames: dict[str, pd.DataFrame] = {}
    for tag in tags:
        if series := [r.scalars[tag] for r in records if tag in r.scalars]:
            x = pd.concat(series, axis=1, join="inner").sort_index()  # a column a seed
            frames[tag] = pd.DataFrame({"mean": x.mean(1), "low": x.min(1), "high": x.max(1)})
    loss = frames.get("train/loss", pd.DataFrame())
    if len(loss) >= MIN_SMOOTHED:
        window = loss.rolling(max(3, len(loss) // 20), center=True, min_periods=1)
        frames["train/loss"] = window.mean()
    return {tag: frame for tag, frame in frames.items() if not frame.empty}


def _average_depth(records: Sequence[RunRecord]) -> dict[str, np.ndarray]:
    found = [record.spectral["depth"] for record in records if record.spectral.get("depth")]
    return {
        name: np.mean([[layer.get(name, np.nan) for layer in depth] for depth in found], axis=0)
        for name in (PROFILE if found else ())
    }


def _average_responses(records: Sequence[RunRecord]) -> list[np.ndarray]:
    found = [record.spectral["response"] for record in records if record.spectral.get("response")]
    return [
        np.mean([np.interp(x, np.linspace(0, 1, len(gains)), gains) for gains in layer], axis=0)
        for layer in zip(*found, strict=True)
        for x in [np.linspace(0, 1, max(map(len, layer)))]
    ]


def plot_training_curves(
    methods: Mapping[str, Mapping[str, pd.DataFrame]], lines: plots.Lines, width: float = WIDTH
) -> Figure:
    """Plot each tag in a panel: the mean over seeds as a line, lowest to highest as a band."""
    tags = list(dict.fromkeys(tag for frames in methods.values() for tag in frames))
    columns = min(len(tags), max(1, int(width / 2.4)), 3)
    figure, axes = plots.make_panels(len(tags), columns, width=width)
    for axis, tag in zip(axes, tags, strict=True):
        for method, frames in methods.items():
            if tag not in frames:
                continue
            frame, line = thin_curve(frames[tag], MAX_POINTS), lines[method]
            # a curve of one point has no line
            marker = "o" if len(frame) == 1 else ""
            axis.plot(frame.index, frame["mean"], label=method, marker=marker, **line)
            band = {"color": line["color"], "alpha": 0.15, "linewidth": 0}
            axis.fill_between(frame.index, frame["low"], frame["high"], **band)
        axis.set_title(tag)
        show_integers(axis, "optimizer step")
    return figure
