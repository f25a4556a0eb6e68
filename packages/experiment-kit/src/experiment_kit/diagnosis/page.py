"""The page of diagnoses, and the files beside it: layers, steps and maps, and models compared."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from attention_core import plots
from attention_core.diagnosis import Diagnosis, verdict
from attention_core.diagnosis.report import LayerDiagnosis, make_columns, number_layers

from experiment_kit.pages.records import PageFigure
from experiment_kit.pages.tables import MISSING, PageTable, embed_figure, write_page
from experiment_kit.run_files import write_atomically

Reports = Mapping[str, Diagnosis]  # by the name of the model
_HEAD = ("model", "layers", "answer", "cosine", "HFC/LFC times", "Δ cosine", "Δ log HFC/LFC")
_NOTE = (
    "Means over samples, without outlier channels and tokens, with 95 % intervals (Student's t): "
    "the cosine after the last layer, and HFC/LFC there over that of the input. Δ is the "
    "difference from the first model, paired by sample."
)
_COSINE, _RATIO = "|cosine| of tokens", "HFC/LFC by that of the input"
_CAPTION = "Tokens by depth, without outliers."
_FOLLOWED = "Tokens after the last layer, without outliers, by step of checkpoint."
_LAYERS = (
    "Tokens after each layer: HFC/LFC, its logarithm's change by each kind of step, and the cosine "
    "are without outlier channels and tokens. Signed, rank and largest are with them: the signed "
    "cosine, the effective rank, and the largest norm of a token over the median. Entropy is "
    "relative; maps is the cosine of their columns; smooths and tied are shares of heads and "
    "samples by their dominating eigenvalue."
)
_REPORT = (
    "Tokens by depth (0: before the first layer) with the limits of the verdict (dashed), the "
    "change of log HFC/LFC by each step, the response of the applied maps (means over heads), the "
    "singular values of the tokens, and the shares of dominating eigenvalues."
)
_HEADS = "Gain at each frequency, a row for each layer and a column for each head."
_ENTRIES = "Coefficients of the mechanisms by layer: the lowest, mean and highest entry."
_MAX_GRID = 400  # maps, of which each is a panel


def write_diagnosis_page(
    path: Path, reports: Reports, notes: Mapping[str, Sequence[str]], steps: Mapping[str, int]
) -> None:
    """Write the page of reports by model, with a comparison where there are several."""
    models = []
    for name, report in reports.items():
        about = [*notes[name], *report.findings, *(f"Note: {x}." for x in report.notes)]
        model: dict[str, Any] = {"name": name, "report": report, "about": about}
        model |= {"layers": tabulate_layers(report), "leverage": tabulate_leverage(report)}
        models.append({**model, "figures": draw_diagnosis(report)})
    several = len(reports) > 1
    title = f"{len(reports)} models" if several else next(iter(reports.values())).model
    context: dict[str, Any] = {"title": f"Diagnosis of {title}", "models": models}
    context["comparison"] = tabulate_models(reports) if several else None
    context["curves"] = draw_comparison(reports, steps) if several else []
    write_page(path, "diagnosis.html", **context)


def tabulate_layers(report: Diagnosis) -> PageTable:
    """Return a row for each attention layer."""
    columns = make_columns(report.layers)
    names = [layer.name for layer in report.layers]
    cells = [[text for _, text in column] for column in columns.values()]
    rows = [*zip(number_layers(report.layers).values(), names, *cells, strict=True)]
    return PageTable("layers", ("layer", "attention", *columns), rows, _LAYERS)


def tabulate_leverage(report: Diagnosis) -> PageTable | None:
    """Return a row for each coefficient, the largest first; None where none was asked for."""
    names = number_layers(report.layers)
    rows = [
        [mechanism, names[stack, i], coefficient, f"{ratio:.3g}", f"{cosine:.3g}"]
        for mechanism, i, coefficient, cosine, ratio, stack in map(astuple, report.leverage or ())
    ]
    head = ("mechanism", "layer", "coefficient", "d log(HFC/LFC)", "d cosine")
    return PageTable("leverage", head, rows) if rows else None


def draw_diagnosis(report: Diagnosis) -> list[PageFigure]:
    """Draw the report, the response of each head, and the coefficients."""
    image = embed_figure(lambda theme: plots.plot_diagnosis(report, theme), "report")
    figures = [PageFigure(image, _REPORT)]
    responses = [layer.responses for layer in report.layers if layer.responses]
    if responses and len(responses) * max(map(len, responses)) <= _MAX_GRID:
        image = embed_figure(lambda _: plots.plot_spectra_grid(responses, first=0), "heads")
        figures.append(PageFigure(image, _HEADS))
    entries: dict[str, dict[str, Any]] = {}
    summary: dict[str, Callable[..., float]] = {"lowest": min, "mean": fmean, "highest": max}
    placed = plots.place_layers([vars(layer) for layer in report.layers])
    for name in dict.fromkeys(name for layer in report.layers for name in layer.coefficients):
        known = {i: found for i, x in placed.items() if (found := x["coefficients"].get(name))}
        entries[name] = {m: ([*known], [*map(take, known.values())]) for m, take in summary.items()}
    if entries:
        image = embed_figure(lambda _: plots.plot_curves(entries, "layer"), "coefficients")
        figures.append(PageFigure(image, _ENTRIES))
    return figures


def tabulate_models(reports: Reports) -> PageTable:
    """Return a row for each stack of layers of a model, with differences from the first model."""
    rows: list[list[str]] = []
    first: dict[str, list[LayerDiagnosis]] = {}
    for name, report in reports.items():
        stacks = verdict.split_stacks(report.layers)
        for stack, layers in stacks.items():
            label = f"{name}, {stack}" if len(stacks) > 1 else name
            rows.append([label, *_compare_stack(layers, first.get(stack))])
            first.setdefault(stack, layers)
    return PageTable("models", _HEAD, rows, _NOTE)


def _compare_stack(layers: list[LayerDiagnosis], others: list[LayerDiagnosis] | None) -> list[str]:
    depth, count = verdict.follow_tokens(layers), str(len(layers))
    if depth is None:
        return [count, "no verdict", *[MISSING] * (len(_HEAD) - 3)]
    kind = verdict.classify_smoothing(depth)
    return [
        count,
        "does not" if kind == "none" else kind,
        _format_interval(depth.cosine),
        _format_interval(depth.factor),
        *(_compare_samples(layers, others, name) for name in ("token_cosine", "hfc_lfc")),
    ]


def _compare_samples(
    layers: list[LayerDiagnosis], others: list[LayerDiagnosis] | None, name: str
) -> str:
    """Return the difference from the first model's last layer, paired by sample."""
    pair = [stack and stack[-1].output for stack in (layers, others)]
    values = [np.array(tokens.samples[name]) for tokens in pair if tokens]
    if len(values) < 2 or len(values[0]) != len(values[1]):
        return MISSING
    with np.errstate(divide="ignore", invalid="ignore"):
        own, other = map(np.log, values) if name == "hfc_lfc" else values
        known = (own - other)[np.isfinite(own - other)].tolist()
    return _format_interval(verdict.estimate_mean(known), "+.3f") if known else MISSING


def _format_interval(interval: verdict.Interval, form: str = ".3g") -> str:
    mean, low, high = (format(value, form) for value in interval)
    return mean if low == high else f"{mean} [{low}, {high}]"


def draw_comparison(reports: Reports, steps: Mapping[str, int]) -> list[PageFigure]:
    """Draw cosine and HFC/LFC by depth, a line a model; by step, where all models have one."""
    depths = {
        (name, stack): depth
        for name, report in reports.items()
        for stack, layers in verdict.split_stacks(report.layers).items()
        if (depth := verdict.follow_tokens(layers))
    }
    panels: dict[str, dict[str, Any]] = {_COSINE: {}, _RATIO: {}}
    followed: dict[str, dict[str, Any]] = {_COSINE: {}, _RATIO: {}}
    for (name, stack), depth in depths.items():
        label = name if stack == "model" else f"{name}, {stack}"
        for title, values in ((_COSINE, depth.cosines), (_RATIO, depth.factors)):
            panels[title][label] = values
            x, y = followed[title].setdefault(stack, ([], []))
            x.append(steps.get(name))
            y.append(values[-1])
    by_depth = embed_figure(lambda _: plots.plot_curves(panels, "layers passed"), "models by depth")
    figures = [PageFigure(by_depth, _CAPTION)] if depths else []
    if depths and set(steps) == set(reports):
        by_step = embed_figure(lambda _: plots.plot_curves(followed, "step"), "models by step")
        figures.insert(0, PageFigure(by_step, _FOLLOWED))
    return figures


def write_reports(path: Path, reports: Reports) -> list[Path]:
    """Write all measures as JSON, for `Diagnosis.from_dict`, and a row for each layer as CSV."""
    measures, table = path.with_suffix(".json"), path.with_suffix(".csv")
    write_atomically(measures, json.dumps([report.to_dict() for report in reports.values()]))
    frames = [report.to_dataframe().assign(model=name) for name, report in reports.items()]
    write_atomically(table, pd.concat(frames).to_csv(index=False))
    return [measures, table]
