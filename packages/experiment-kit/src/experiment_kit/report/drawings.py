"""The figures of the runs on one data set, each with its caption, or a sentence on why not."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from experiment_kit.report import figures, svg
from experiment_kit.report.curves import Run, over_seeds

TAGS = ("train/loss", "val/loss", "val/accuracy")
CURVES = (
    "Training: the line is the mean over seeds, the band reaches from the lowest to the highest; "
    "a line ends at the last step that every seed reached."
)
DEPTH = (
    "Depth: block 0 is the embedding; mean over seeds. Oversmoothing shows as a falling ratio, "
    "cosines near 1 and a falling rank."
)
RESPONSES = (
    "Frequency response: the row norms of F H F⁻¹, mean over heads, batch and seeds. Faint lines "
    "are early layers, strong lines late ones."
)


def draw(runs: Sequence[Run], labels: Mapping[str, str], title: str) -> Iterator[str]:
    """Yield the figures of the runs as HTML; a method keeps its colour on every data set."""
    colours = {label: i for i, label in enumerate(labels.values())}
    methods: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: colours[labels[run.row]]):
        methods[labels[run.row]].append(run)

    def figure(
        plot: Callable[..., str], of: Callable[..., Any], name: str, file: str, caption: str
    ) -> str:
        found = {method: data for method in methods if (data := of(methods[method]))}
        absent = ", ".join(method for method in methods if method not in found)
        lacking = f"No {name} of {absent}: {file} is missing." if absent else ""
        if not found:
            return f'<p class="soft">{escape(lacking)}</p>'
        drawn = plot(found, colours, f"{name}, {title}")
        return f"<figure>{drawn}<figcaption>{escape(f'{caption} {lacking}')}</figcaption></figure>"

    yield _legend(methods, colours)
    yield figure(figures.curves, _curves, "training curves", "tensorboard/", CURVES)
    yield figure(figures.depth, _depth, "depth profile", "spectral.json", DEPTH)
    yield figure(figures.responses, _responses, "response", "spectral.json", RESPONSES)


def _legend(methods: Iterable[str], colours: figures.Colours) -> str:
    names = (f'<li><i style="{svg.swatch(colours[m])}"></i>{escape(m)}</li>' for m in methods)
    return f'<ul class="legend">{"".join(names)}</ul>'


def _curves(runs: Sequence[Run]) -> dict[str, pd.DataFrame]:
    seeds = {tag: [run.scalars[tag] for run in runs if tag in run.scalars] for tag in TAGS}
    frames = {tag: over_seeds(series) for tag, series in seeds.items() if series}
    return {tag: frame for tag, frame in frames.items() if not frame.empty}


def _depth(runs: Sequence[Run]) -> dict[str, np.ndarray]:
    found = [run.spectral["depth"] for run in runs if run.spectral.get("depth")]
    return {
        name: np.mean([[layer.get(name, np.nan) for layer in depth] for depth in found], axis=0)
        for name in (figures.DEPTH if found else ())
    }


def _responses(runs: Sequence[Run]) -> list[np.ndarray]:
    found: list[list[Any]] = [r.spectral["response"] for r in runs if r.spectral.get("response")]
    return [np.mean(np.array(layer, dtype=float), axis=0) for layer in zip(*found, strict=True)]
