"""The command that draws figures of the papers from the models, runs and results that are here."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from attention_core.plots import render_figure
from attention_core.plots.panels import FORMATS
from jsonargparse.typing import PositiveFloat
from rich.console import Console

from experiment_kit.diagnosis.model_sources import load_model
from experiment_kit.environment import split_list
from experiment_kit.errors import UserError
from experiment_kit.papers.figures import DRAWINGS, DrawnModel, FigureEntry, find_figures, find_runs
from experiment_kit.run_files import write_atomically


def make_figure(
    figure: str,
    model: Sequence[str] | str = "",
    backbone: str = "",
    out: str = "",
    theme: Literal["light", "dark"] = "light",
    width: PositiveFloat = 7.0,
    folder: str = "runs",
    results: str = "docs/results",
    trust: list[str] | str = "",
) -> None:
    """Draw a printed figure, such as gfsa-2, or all of a paper; say what the printed one needs.

    Without a model it is drawn from the runs in the folder, or from published tables.

    Args:
        figure: a printed figure, such as gfsa-2; a paper, such as gfsa; or all
        model: timm:NAME, hf:FOLDER, run:FOLDER or checkpoint:FILE, or several, such as
            [timm:NAME,hf:FOLDER]
        backbone: the model that weights of checkpoint:FILE belong to
        out: the folder of the figures, or a file for a single one, whose name ends in .svg, .png or
            .pdf; by default <folder>/figures
        theme: light or dark
        width: of the figure in inches, 3.4 for a column of a paper
        folder: the folder of the runs
        results: the folder of the published tables
        trust: classes, as package.Class, that the configs of runs may name besides ours
    """
    entries = find_figures(figure)
    names = split_list(model)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for name, entry in entries.items():
        path = Path(out or f"{folder}/figures")
        if path.suffix == "" or path.is_dir():
            path /= f"{name}.svg"
        elif len(entries) > 1:
            raise UserError(f"--out={out} is one file: name a folder for {len(entries)} figures")
        if path.suffix[1:] not in FORMATS:
            raise UserError(f"--out={out} ends in none of .{', .'.join(FORMATS)}")
        try:
            given: Any = Path(results)
            notes = [f"the printed figure: {entry.printed}"]
            if names and not entry.groups:
                raise UserError("it shows no model: leave out --model")
            if entry.groups:
                given, found = collect_models(entry, names, backbone, Path(folder), trust)
                notes = [*found, *notes]
            draw = partial(DRAWINGS[entry.draw], given, width, **entry.options)
            write_atomically(path, render_figure(draw, path.suffix[1:], theme))
        except UserError as error:
            if len(entries) == 1:
                raise UserError(f"{name} cannot be drawn: {error}") from error
            console.print(f"{name}: not drawn: {error}")
            continue
        console.print(f"{path}: {entry.caption}", *notes, sep="\n  ")


def collect_models(
    entry: FigureEntry, names: Sequence[str], backbone: str, folder: Path, trust: list[str] | str
) -> tuple[dict[str, DrawnModel], list[str]]:
    """Load the named models, or else the runs of a figure in a folder; return notes on them."""
    notes: list[str] = []
    paths = [(Path(name.partition(":")[2]).parts, name.startswith("run:")) for name in names]
    ends = ["/".join(parts[-2 if is_run else -1 :]) for parts, is_run in paths]
    named = dict(zip(ends if len({*ends}) == len(names) else names, names, strict=True))
    for group in () if names else entry.groups:
        runs, missing = find_runs(group, folder)
        named |= {label: f"run:{path}" for label, path in runs.items()}
        notes += missing
    if not named:
        raise UserError("; ".join(notes))
    models = {}
    for label, name in named.items():
        network, batches, said = load_model(name, (), entry.samples, trust, backbone=backbone)
        batch, mask = next(batches)
        models[label] = DrawnModel(label, network, batch, mask, () if entry.samples else batches)
        notes += [f"{label}: {said[0]}"] if names else []
    return models, notes
