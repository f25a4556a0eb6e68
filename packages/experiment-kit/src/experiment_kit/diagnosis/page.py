"""The page of diagnoses: a comparison, and verdict, layers, steps and maps of each model."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from attention_core import plots
from attention_core.diagnosis import Diagnosis
from attention_core.diagnosis.report import make_columns, number_layers

from experiment_kit.diagnosis.comparison import Reports, draw_comparison, tabulate_models
from experiment_kit.pages.run_figures import PageFigure
from experiment_kit.pages.tables import PageTable, embed_figure, write_page

_LAYERS = (
    "Tokens after each layer, without outlier channels and tokens. The columns with a sign are the "
    "changes of log HFC/LFC by each kind of step. The cosine is absolute, then signed; largest is "
    "the largest norm of a token over the median; entropy is relative; maps is the cosine of their "
    "columns; smooths and tied are shares of heads and samples by their dominating eigenvalue."
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
    sections = [
        {
            "name": name,
            "report": report,
            "about": [*notes[name], *report.findings, *(f"Note: {x}." for x in report.notes)],
            "layers": tabulate_layers(report),
            "figures": draw_diagnosis(report),
            "leverage": tabulate_leverage(report),
        }
        for name, report in reports.items()
    ]
    several = len(reports) > 1
    title = f"{len(reports)} models" if several else next(iter(reports.values())).model
    write_page(
        path,
        "diagnosis.html",
        title=f"Diagnosis of {title}",
        models=sections,
        comparison=tabulate_models(reports) if several else None,
        curves=draw_comparison(reports, steps) if several else [],
    )


def tabulate_layers(report: Diagnosis) -> PageTable:
    """Return a row for each attention layer."""
    columns = make_columns(report.layers)
    names = [layer.name for layer in report.layers]
    cells = [[text for _, text in column] for column in columns.values()]
    rows = [*zip(number_layers(report.layers), names, *cells, strict=True)]
    return PageTable("layers", ("layer", "attention", *columns), rows, _LAYERS)


def tabulate_leverage(report: Diagnosis) -> PageTable | None:
    """Return a row for each coefficient, the largest first; None where none was asked for."""
    rows = [
        [x.mechanism, str(x.layer), x.coefficient, f"{x.log_hfc_lfc:.3g}", f"{x.token_cosine:.3g}"]
        for x in report.leverage or ()
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
    for name in dict.fromkeys(name for layer in report.layers for name in layer.coefficients):
        known = {x.index: found for x in report.layers if (found := x.coefficients.get(name))}
        entries[name] = {m: ([*known], [*map(take, known.values())]) for m, take in summary.items()}
    if entries:
        image = embed_figure(lambda _: plots.plot_curves(entries, "layer"), "coefficients")
        figures.append(PageFigure(image, _ENTRIES))
    return figures
