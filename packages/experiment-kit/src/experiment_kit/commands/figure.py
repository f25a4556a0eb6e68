"""The commands that draw the figures of the papers from what is here."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from attention_core.plots import render_figure
from attention_core.plots.panels import FORMATS
from rich.console import Console

from experiment_kit.errors import UserError
from experiment_kit.papers.figures.entries import (
    FigureEntry,
    find_figure,
    find_runs,
    list_figures,
    name_runs,
)
from experiment_kit.papers.figures.model_figures import MODEL_FIGURES, load_panels
from experiment_kit.papers.figures.result_figures import RESULT_FIGURES, RUN_FIGURES
from experiment_kit.run import write_atomically


@dataclass(frozen=True, kw_only=True)
class FigureOptions:
    """The options of all figures.

    Args:
        out: the folder of the figures, or a file for a single one, whose name ends in .svg, .png or
            .pdf; by default <folder>/figures
        theme: light or dark
        width: of the figure in inches, 3.4 for a column of a paper
        folder: the folder of the runs
        results: the folder of the published tables
        trust: classes, as package.Class, that the configs of runs may name besides ours
    """

    out: str = ""
    theme: Literal["light", "dark"] = "light"
    width: float = 7.0
    folder: str = "runs"
    results: str = "docs/results"
    trust: list[str] | str = ""

    def choose_path(self, entry: FigureEntry) -> Path:
        """Return the file of a figure; UserError for one of another format."""
        out = Path(self.out or f"{self.folder}/figures")
        if out.suffix == "" or out.is_dir():
            return out / f"{entry.id}.svg"
        if out.suffix[1:] not in FORMATS:
            raise UserError(f"--out={out} ends in none of .{', .'.join(FORMATS)}")
        return out


def make_figure(
    figure: str,
    runs: Sequence[str] | None = None,
    model: Sequence[str] | str = "",
    backbone: str = "",
    **options: Any,
) -> None:
    """Draw a printed figure, such as gfsa-2, and say what the full one needs.

    Without runs and model, it is drawn from the runs in the folder, or from published tables.

    Args:
        figure: a printed figure, such as gfsa-2
        runs: folders of finished runs
        model: timm:NAME, hf:FOLDER, run:FOLDER or checkpoint:FILE, or several, such as
            [timm:NAME,hf:FOLDER]
        backbone: the model that weights of checkpoint:FILE belong to
        options: those of all figures
    """
    entry, chosen = find_figure(figure), FigureOptions(**options)
    models = [model] if isinstance(model, str) and model else [*model]
    allowed = ["--runs"] * bool(entry.groups) + ["--model"] * (entry.draw in MODEL_FIGURES)
    named = [name for name, value in {"--runs": runs, "--model": models}.items() if value]
    if len(named) > 1 or not {*named} <= {*allowed}:
        use = f"name {' or '.join(allowed)}, or none" if allowed else "leave it out"
        raise UserError(f"{entry.id} is not drawn from {' and '.join(named)}: {use}")
    draw_figure(entry, chosen, runs or (), models, backbone)


def make_figures(paper: str = "", **options: Any) -> None:
    """Draw all figures of a paper, or of all; say what others need.

    Args:
        paper: gfsa, attnscale, agf or record_straight; all by default
        options: those of all figures
    """
    chosen = FigureOptions(**options)
    for entry in list_figures(paper):
        try:
            draw_figure(entry, chosen)
        except UserError as error:
            print(f"{entry.id}: not drawn: {error}")


def draw_figure(
    entry: FigureEntry,
    options: FigureOptions,
    runs: Sequence[str] = (),
    models: Sequence[str] = (),
    backbone: str = "",
) -> None:
    """Draw a figure into its file from named runs or models, or else from what two folders have."""
    if entry.draw == "diagram":
        raise UserError(f"{entry.id} is a diagram, in which nothing is plotted: {entry.caption}")
    draw: Any
    given: Any
    notes: list[str] = []
    if entry.draw in RESULT_FIGURES:
        draw, given = RESULT_FIGURES[entry.draw], Path(options.results)
    else:
        found = name_runs(entry, runs)
        if not runs and not models:
            found, notes = find_runs(entry, Path(options.folder))
        if not found and not models:
            raise UserError(f"{entry.id} cannot be drawn: {'; '.join(notes)}")
        draw, given = (RUN_FIGURES | MODEL_FIGURES)[entry.draw], found
        if entry.draw in MODEL_FIGURES:
            given = load_panels(found, models, backbone, options.trust)
            drawn = [model for panel in given.values() for model in panel.values()]
            notes += [f"{model.label}: {model.weights}" for model in drawn if model.weights]
    path = options.choose_path(entry)
    figure = partial(draw, entry, given, options.width)
    write_atomically(path, render_figure(figure, path.suffix[1:], options.theme))
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"{path}: {entry.caption}")
    for note in (*notes, f"the printed figure: {entry.missing}"):
        console.print(f"  {note}")
