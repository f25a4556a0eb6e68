"""The page of a search: the chosen point, all trials, importances and slices."""

from functools import partial
from importlib.resources import files
from pathlib import Path

from experiment_kit.commands.search import Search, describe_choice
from experiment_kit.launch.grid import shorten_key
from experiment_kit.launch.study import GridStudy
from experiment_kit.pages import plots
from experiment_kit.pages.run_figures import FigureSet, PageFigure
from experiment_kit.pages.svg import draw_panels
from experiment_kit.pages.tables import Cell, PageTable
from experiment_kit.pages.template import link_file, write_page

TEMPLATE = Path(str(files("experiment_kit.pages"))) / "templates" / "search.html"
SLICES = (
    "Slices: a point is a trial, the line is the mean of the trials of a value. A value that was "
    "tried beside better values of the other options looks better than it is."
)
IMPORTANCES = (
    "Importance: the share of each option in how the best tenth of the trials differs from all of "
    "them (PED-ANOVA, arXiv:2304.10255). With fewer than 50 trials it is rough."
)


def write_search_page(found: Search, study: GridStudy) -> None:
    """Write `search.html` beside the overlay of the chosen point."""
    path = found.path / "search.html"
    write_page(
        path,
        TEMPLATE,
        title=f"Search: {found.title}",
        choice=describe_choice(found, study),
        sampler=found.sampler,
        metric=found.metric,
        split=found.split,
        command_lines=[found.command],
        overlay=(found.path / "chosen.yaml").read_text(encoding="utf-8").splitlines(),
        trials=tabulate_trials(found, study, path),
        figure_set=FigureSet({}, draw_search(found, study)),
    )


def tabulate_trials(found: Search, study: GridStudy, page: Path) -> PageTable:
    """Return a row for each trial, with links to the configs of its runs."""
    best, _ = study.find_best()
    finished = study.list_finished()
    planned = found.plan_points(trial.params for trial in finished)
    seeds = [f"seed {e.seed}" for e in found.experiments]
    head = ["trial", *(shorten_key(key, found.space) for key in found.space), found.metric, *seeds]
    rows = []
    for number, (trial, runs) in enumerate(zip(finished, planned, strict=True), start=1):
        configs = [run.folder / "config.yaml" for run in runs.values()]
        scores = zip(found.read_scores(runs), configs, strict=True)
        rows.append([
            Cell(str(number), number),
            *(_show_value(trial.params[key]) for key in found.space),
            Cell(f"{trial.value:.4g}", trial.value, is_best=trial.number == best.number),
            *(_show_score(score, config, page) for score, config in scores),
        ])  # fmt: skip
    return PageTable("trials", head, rows, "Bold is the chosen point; a seed links to its config.")


def _show_value(text: str) -> Cell:
    try:
        return Cell(text, float(text))
    except ValueError:
        return Cell(text)


def _show_score(score: float | None, config: Path, page: Path) -> Cell:
    if score is None:
        return Cell("–")
    return Cell(f"{score:.4g}", score, href=link_file(config, page) if config.is_file() else "")


def draw_search(found: Search, study: GridStudy) -> list[PageFigure]:
    """Draw the slices, and the importances where they are defined."""
    finished = study.list_finished()
    names = {key: shorten_key(key, found.space) for key in found.space}
    slices = {
        name: {v: [t.value for t in finished if t.params[key] == v] for v in found.space[key]}
        for key, name in names.items()
    }
    label = f"{found.metric} by option"
    drawn = [
        PageFigure(draw_panels(partial(plots.plot_slices, slices, found.metric), label), SLICES)
    ]
    if shares := study.measure_importances():
        named = {names[key]: share for key, share in shares.items()}
        panels = draw_panels(partial(plots.plot_importances, named), "importance of options")
        return [*drawn, PageFigure(panels, IMPORTANCES)]
    return [
        *drawn,
        PageFigure([], "No importances: they need two options and two different values."),
    ]
