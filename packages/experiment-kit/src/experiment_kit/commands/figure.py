"""The commands that draw the figures of the papers from what is here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape

from experiment_kit.errors import UserError
from experiment_kit.papers.figures.entries import (
    FigureEntry,
    PanelRuns,
    find_figure,
    find_runs,
    list_figures,
    name_runs,
)
from experiment_kit.run import write_atomically

Format = Literal["svg", "png", "pdf"]
Theme = Literal["light", "dark"]
_WIDTHS = (3.0, 20.0)  # inches: a column of a paper, a poster


@dataclass(frozen=True)
class Sources:
    """The sources of figures: named runs or models, or else what two folders have."""

    folder: Path = Path("runs")
    results: Path = Path("docs/results")
    runs: Sequence[str] = ()
    models: Sequence[str] = ()
    backbone: str = ""


@dataclass(frozen=True)
class Appearance:
    """The format, the theme, and the width in inches of a figure; UserError for another width."""

    format: Format = "svg"
    theme: Theme = "light"
    width: float = 7.0

    def __post_init__(self) -> None:
        low, high = _WIDTHS
        if not low <= self.width <= high:
            raise UserError(f"--width={self.width:g}: expected {low:g} to {high:g} inches")


def make_figure(
    figure: str,
    runs: Sequence[str] | None = None,
    model: Sequence[str] | str = "",
    checkpoint: str = "",
    backbone: str = "",
    out: str = "",
    format: Format = "svg",
    theme: Theme = "light",
    width: float = 7.0,
    folder: str = "runs",
    results: str = "docs/results",
) -> None:
    """Draw a printed figure, such as gfsa-2, and say what the full one needs.

    Without runs, model and checkpoint, it is drawn from the runs in the folder, or from the
    published tables.

    Args:
        figure: a printed figure, such as gfsa-2
        runs: folders of finished runs
        model: timm:NAME, hf:FOLDER or run:FOLDER, or several, such as [timm:NAME,hf:FOLDER]
        checkpoint: a file of weights, with the backbone that they belong to
        backbone: the model of the checkpoint
        out: a file that ends in the format, or a folder; by default <folder>/figures/<figure>.svg
        format: svg, png or pdf
        theme: light or dark
        width: of the figure in inches, 3.4 for a column of a paper
        folder: the folder of the runs
        results: the folder of the published tables
    """
    entry, appearance = find_figure(figure), Appearance(format, theme, width)
    path = Path(out or f"{folder}/figures/{entry.id}.{format}")
    if path.is_dir() or (out and path.suffix == ""):
        path = path / f"{entry.id}.{format}"
    elif path.suffix and path.suffix != f".{format}":
        raise UserError(f"--out={out} does not end in .{format}: change it, or --format")
    sources = choose_sources(entry, runs or (), model, checkpoint, backbone)
    sources = replace(sources, folder=Path(folder), results=Path(results))
    _write_figure(Console(), entry, path, sources, appearance)


def make_figures(
    paper: str = "",
    out: str = "",
    format: Format = "svg",
    theme: Theme = "light",
    width: float = 7.0,
    folder: str = "runs",
    results: str = "docs/results",
) -> None:
    """Draw all figures of a paper, or of all papers, that can be drawn from what is here.

    What is not here is said in a sentence each, with the command that makes it.

    Args:
        paper: gfsa, attnscale, agf or record_straight; all by default
        out: the folder of the figures, by default <folder>/figures
        format: svg, png or pdf
        theme: light or dark
        width: of the figure in inches, 3.4 for a column of a paper
        folder: the folder of the runs
        results: the folder of the published tables
    """
    appearance = Appearance(format, theme, width)
    sources = Sources(Path(folder), Path(results))
    console = Console()
    for entry in list_figures(paper):
        path = Path(out or f"{folder}/figures") / f"{entry.id}.{format}"
        if entry.is_diagram:
            console.print(f"{entry.id}: a diagram", highlight=False)
            continue
        try:
            _write_figure(console, entry, path, sources, appearance)
        except UserError as error:
            console.print(f"{entry.id}: [yellow]not drawn[/]: {escape(str(error))}", soft_wrap=True)


def choose_sources(
    entry: FigureEntry,
    runs: Sequence[str],
    model: Sequence[str] | str,
    checkpoint: str,
    backbone: str,
) -> Sources:
    """Return the named sources of a figure; UserError for two kinds of them, or one it cannot use.

    An empty name is one that is not given.
    """
    models = [model] if isinstance(model, str) and model else [*model]
    kinds = {"--runs": runs, "--model": models, "--checkpoint": checkpoint}
    given = [name for name, value in kinds.items() if value]
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)}: draw {entry.id} from one of them")
    if bool(backbone) != bool(checkpoint):
        raise UserError("--checkpoint and --backbone belong together: name both")
    allowed = ["--runs"] * bool(entry.groups) + ["--model", "--checkpoint"] * entry.is_of_models
    if given and given[0] not in allowed:
        use = " or ".join(allowed)
        raise UserError(f"{entry.id} is not drawn from {given[0]}: "
                        f"{f'name {use}, or leave it out' if use else 'leave it out'}")  # fmt: skip
    return Sources(runs=runs, models=[f"checkpoint:{checkpoint}"] if checkpoint else models,
                   backbone=backbone)  # fmt: skip


def draw_figure(
    entry: FigureEntry, path: Path, sources: Sources, appearance: Appearance
) -> list[str]:
    """Draw a figure into a file, and return sentences on what it lacks.

    Raises UserError where nothing that it is drawn from is here, with the command that makes it.
    """
    # here, since matplotlib takes a second to import
    from attention_core.plots import render_figure

    if entry.is_diagram:
        raise UserError(f"{entry.id} is a diagram, in which nothing is plotted: {entry.caption}")
    draw, notes = _choose_drawing(entry, sources)
    content = render_figure(lambda: draw(appearance.width), appearance.format, appearance.theme)
    write_atomically(path, content)
    return [*notes, f"the printed figure: {entry.missing}"]


def _choose_drawing(
    entry: FigureEntry, sources: Sources
) -> tuple[Callable[[float], Any], list[str]]:
    """Return the drawing of a figure, as a function of its width, and notes."""
    from experiment_kit.papers.figures.model_figures import MODEL_FIGURES, ModelPanel
    from experiment_kit.papers.figures.models import load_model, load_run_model
    from experiment_kit.papers.figures.result_figures import RESULT_FIGURES
    from experiment_kit.papers.figures.run_figures import RUN_FIGURES, RunSources

    if entry.draw in RESULT_FIGURES:
        return lambda width: RESULT_FIGURES[entry.draw](entry, sources.results, width), []
    found: list[PanelRuns] = []
    notes: list[str] = []
    if sources.runs:
        found = name_runs(entry, sources.runs)
    elif not sources.models:
        found, notes = find_runs(entry, sources.folder)
    if entry.draw in RUN_FIGURES:
        given = RunSources(found, sources.folder, sources.results)
        return lambda width: RUN_FIGURES[entry.draw](entry, given, width), notes
    if not found and not sources.models:
        raise UserError(f"{entry.id} cannot be drawn: {'; '.join(notes)}")
    loaded = [load_model(name, sources.backbone) for name in sources.models]
    panels = [ModelPanel("", {model.label: model for model in loaded})] if loaded else [
        ModelPanel(p.group.panel, {m: load_run_model(m, s[0]) for m, s in p.runs.items()})
        for p in found
    ]  # fmt: skip
    models = [model for panel in panels for model in panel.models.values()]
    notes += [f"{model.label}: {model.weights}" for model in models if model.weights]
    return lambda width: MODEL_FIGURES[entry.draw](entry, panels, width), notes


def _write_figure(
    console: Console, entry: FigureEntry, path: Path, sources: Sources, appearance: Appearance
) -> None:
    notes = draw_figure(entry, path, sources, appearance)
    console.print(f"[bold]{escape(str(path))}[/]: {escape(entry.title)}", soft_wrap=True)
    for note in notes:
        console.print(f"  {note}", markup=False, highlight=False, soft_wrap=True)
