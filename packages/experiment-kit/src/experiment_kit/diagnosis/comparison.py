"""Several diagnoses beside each other: differences with intervals, and curves by depth or step."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from attention_core.diagnosis import Diagnosis
from attention_core.diagnosis.report import LayerDiagnosis, average_finite
from attention_core.diagnosis.verdict import (
    Interval,
    classify_smoothing,
    estimate_mean,
    follow_tokens,
    split_stacks,
    sum_changes,
)
from attention_core.plots import plot_curves

from experiment_kit.pages.run_figures import PageFigure
from experiment_kit.pages.tables import MISSING, PageTable, TableCell
from experiment_kit.pages.template import embed_figure
from experiment_kit.run import write_atomically

Reports = Mapping[str, Diagnosis]  # by the name of the model
_HEAD = ("model", "layers", "answer", "cosine", "HFC/LFC times", "Δ cosine",
         "Δ log HFC/LFC", "entropy", "smooths most")  # fmt: skip
_NOTE = (
    "Means over samples, without outlier channels and tokens, with 95 % intervals (Student's t): "
    "the cosine after the last layer, and HFC/LFC there over that of the input. Δ is the "
    "difference from the first model, paired by sample."
)
_CAPTION = "Tokens by depth, without outliers. HFC/LFC is relative to that of the input."
_FOLLOWED = "Tokens after the last layer and the entropy of its attention, by step of checkpoint."


def tabulate_models(reports: Reports) -> PageTable:
    """Return a row for each stack of layers of each model, with differences from the first."""
    rows: list[list[TableCell]] = []
    first: dict[str, list[LayerDiagnosis]] = {}
    for name, report in reports.items():
        stacks = split_stacks(report.layers)
        for stack, layers in stacks.items():
            label = f"{name}, {stack}" if len(stacks) > 1 else name
            rows.append([TableCell(label), *_compare_stack(layers, first.get(stack))])
            first.setdefault(stack, layers)
    return PageTable("models", _HEAD, rows, _NOTE)


def _compare_stack(
    layers: list[LayerDiagnosis], others: list[LayerDiagnosis] | None
) -> list[TableCell]:
    depth, count = follow_tokens(layers), TableCell(str(len(layers)), len(layers))
    if depth is None:
        return [count, TableCell("no verdict"), *[TableCell(MISSING)] * (len(_HEAD) - 3)]
    changes = sum_changes(layers)
    driver = min(changes, key=lambda kind: changes[kind], default=MISSING)
    entropy = average_finite([average_finite(layer.relative_entropy) for layer in layers])
    kind = classify_smoothing(depth)
    return [
        count,
        TableCell("does not" if kind == "none" else kind),
        _format_interval(depth.cosine),
        _format_interval(depth.factor),
        *(_compare_samples(layers, others, name) for name in ("token_cosine", "hfc_lfc")),
        TableCell(MISSING) if entropy is None else TableCell(f"{entropy:.2f}", entropy),
        TableCell(driver),
    ]


def _compare_samples(
    layers: list[LayerDiagnosis], others: list[LayerDiagnosis] | None, name: str
) -> TableCell:
    """Return the difference from the first model's last layer, paired by sample."""
    pair = [stack and stack[-1].output for stack in (layers, others)]
    values = [tokens.samples[name] for tokens in pair if tokens]
    if len(values) < 2 or len(values[0]) != len(values[1]):
        return TableCell(MISSING)
    if name == "hfc_lfc":
        values = [[math.log(x) if x > 0 else math.nan for x in sample] for sample in values]
    known = [x - y for x, y in zip(*values, strict=True) if math.isfinite(x - y)]
    return _format_interval(estimate_mean(known), "+.3f") if known else TableCell(MISSING)


def _format_interval(interval: Interval, form: str = ".3g") -> TableCell:
    mean, low, high = (format(value, form) for value in interval)
    return TableCell(mean if low == high else f"{mean} [{low}, {high}]", interval.mean)


def draw_comparison(reports: Reports, steps: Mapping[str, int]) -> list[PageFigure]:
    """Draw cosine and HFC/LFC by depth, a line a model; by step, where all models have one."""
    depths = {
        f"{name}, {stack}" if stack != "model" else name: depth
        for name, report in reports.items()
        for stack, layers in split_stacks(report.layers).items()
        if (depth := follow_tokens(layers))
    }
    panels = {
        "|cosine| of tokens": {name: depth.cosines for name, depth in depths.items()},
        "HFC/LFC by that of the input": {name: depth.factors for name, depth in depths.items()},
    }
    image = embed_figure(lambda _: plot_curves(panels, "layers passed"), "models by depth")
    figures = [PageFigure(image, _CAPTION)] if depths else []
    if set(steps) == set(reports):
        followed = _list_by_step(reports, steps)
        image = embed_figure(lambda _: plot_curves(followed, "step"), "models by step")
        figures.insert(0, PageFigure(image, _FOLLOWED))
    return figures


def _list_by_step(reports: Reports, steps: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    panels: dict[str, dict[str, Any]] = {"|cosine| of tokens": {}, "HFC/LFC": {}, "entropy": {}}
    for name, report in reports.items():
        for stack, layers in split_stacks(report.layers).items():
            last, entropy = layers[-1].output, average_finite(layers[-1].relative_entropy)
            values = [last and last.trimmed_token_cosine, last and last.trimmed_hfc_lfc, entropy]
            for curves, value in zip(panels.values(), values, strict=True):
                x, y = curves.setdefault(stack, ([], []))
                x.append(steps[name])
                y.append(value)
    return panels


def write_reports(path: Path, reports: Reports) -> list[Path]:
    """Write all measures as JSON, for `Diagnosis.from_dict`, and a row for each layer as CSV."""
    content = json.dumps([report.to_dict() for report in reports.values()])
    frames = [report.to_dataframe().assign(model=name) for name, report in reports.items()]
    text = pd.concat(frames).to_csv(index=False)
    files = [path.with_suffix(".json"), path.with_suffix(".csv")]
    for file, written in zip(files, (content, text), strict=True):
        write_atomically(file, written)
    return files
