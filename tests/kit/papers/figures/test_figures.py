"""Every printed figure is drawn from tiny models and made-up runs and results."""

import sys
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
import torch
from attention_core import plots
from experiment_kit.__main__ import main
from experiment_kit.papers.figures.entries import (
    FigureEntry,
    find_figure,
    find_runs,
    list_figures,
    name_runs,
)
from experiment_kit.papers.figures.model_figures import MODEL_FIGURES, trace_intensity
from experiment_kit.papers.figures.result_figures import RESULT_FIGURES, RUN_FIGURES
from experiment_kit.papers.spec import find_spec
from matplotlib.container import BarContainer

from tests.kit.conftest import make_measurement
from tests.kit.papers.figures.sources import HEADS, LAYERS, SCALARS, make_model, write_run

PRINTED = {"gfsa": 7, "attnscale": 12, "agf": 3, "record-straight": 7}
DIAGRAMS = {"attnscale-3", "agf-1", "agf-2"}
DRAWN = [entry for entry in list_figures() if entry.draw != "diagram"]
# lines, bars or images of all panels together, from the sources below
SERIES = {
    "gfsa-1": 18, "gfsa-2": 8, "gfsa-3": 9, "gfsa-4": 8, "gfsa-5": 8, "gfsa-6": 2, "gfsa-7": 4,
    "attnscale-1": 8, "attnscale-2": LAYERS, "attnscale-4": 4, "attnscale-5": LAYERS * HEADS,
    "attnscale-6": HEADS, "attnscale-7": 2 * HEADS, "attnscale-8": 2 * LAYERS,
    "attnscale-9": LAYERS * HEADS, "attnscale-10": LAYERS * HEADS, "attnscale-11": 4,
    "attnscale-12": 4, "agf-3": 8, "record-straight-1": 12, "record-straight-2": 5,
    "record-straight-3": 5, "record-straight-4": 4, "record-straight-5": 10,
    "record-straight-6": 56, "record-straight-7": 6,
}  # fmt: skip


@cache
def load_tiny_model(method):
    return make_model(method)


def draw_entry(entry: FigureEntry, folder: Path, width: float = 7.0):
    """Draw an entry from what its app has, with a model or run for each of its methods."""
    if entry.draw in RESULT_FIGURES:
        if entry.draw == "sweep":
            write_results(folder, entry.table, ["K2", "K3", "K5"], ["cola", "mrpc"])
        elif entry.table:
            write_results(folder, entry.table)
        elif entry.draw == "gains":
            for pair in entry.options["pairs"]:
                write_results(folder, pair["table"], pair["rows"][0], [pair["column"]])
        return RESULT_FIGURES[entry.draw](entry, folder, width)
    if entry.draw in RUN_FIGURES:
        runs = folder / "runs"
        for method in entry.groups[0].methods:
            write_run(runs, entry.groups[0].app, method, scalars=SCALARS)
        panels, _ = find_runs(entry, runs)
        return RUN_FIGURES[entry.draw](entry, panels, width)
    panels = {
        group.panel: {label: load_tiny_model(method if method != "agf" else "gfsa")
                      for method, label in group.methods.items()}
        for group in entry.groups
    }  # fmt: skip
    return MODEL_FIGURES[entry.draw](entry, panels, width)


def write_results(folder: Path, table: str, rows=None, columns=None):
    """Write results of seeds for the cells of a table, 1 for the first row, 2 for the second."""
    spec = find_spec(table)
    places = product(enumerate(rows or spec.rows), columns or spec.columns, (0, 1))
    lines = [make_measurement(table=table, row=row, column=column, seed=seed, value=i + 1.0)
             for (i, row), column, seed in places]  # fmt: skip
    pd.DataFrame(lines).to_csv(folder / f"{table}.csv", index=False)


def count_series(figure) -> int:
    dotted = (None, "dotted")
    return sum(
        len([line for line in axis.lines if line.get_linestyle() not in (*dotted, ":")])
        + len(axis.patches)
        + len(axis.images)
        for axis in figure.axes
    )


def test_the_entries_are_the_printed_figures():
    assert [e.id for e in list_figures()] == [
        f"{paper}-{n}" for paper, count in PRINTED.items() for n in range(1, count + 1)
    ]
    assert {e.id for e in list_figures() if e.draw == "diagram"} == DIAGRAMS
    text = (Path(__file__).parents[4] / "docs" / "figures.md").read_text()
    assert all(text.count(f"\n- `{entry.id}`: ") == 1 for entry in list_figures())


@pytest.mark.parametrize("entry", DRAWN, ids=lambda entry: entry.id)
def test_every_figure_is_drawn_with_labels_and_its_series(entry, tmp_path):
    with plots.use_style():
        figure = draw_entry(entry, tmp_path)
    for axis in figure.axes:
        assert axis.get_xlabel() or figure.get_supxlabel() or not axis.get_xticklabels()
        assert axis.get_ylabel() or figure.get_supylabel() or axis.get_title("left")
    zero_lines = 1 if entry.draw == "gains" else 0
    assert count_series(figure) - zero_lines == SERIES[entry.id]


@pytest.mark.parametrize(("scores", "shown"), [((61.0, 62.0, 61.5), 1), ((61.0, 59.0, 60.5), 0)])
def test_a_measured_gain_is_shown_with_its_interval_unless_this_holds_0(scores, shown, tmp_path):
    rows = {"softmax-roberta_base": (60.0, 60.0, 60.0), "gfsa-roberta_base": scores}
    lines = [make_measurement(table="gfsa-table-1", row=row, column="cola", seed=i, value=value)
             for row, values in rows.items() for i, value in enumerate(values)]  # fmt: skip
    pd.DataFrame(lines).to_csv(tmp_path / "gfsa-table-1.csv", index=False)
    (axis,) = RESULT_FIGURES["gains"](find_figure("gfsa-1"), tmp_path, 7.0).axes
    bars = [c for c in axis.containers if isinstance(c, BarContainer)][-1]
    assert len(bars) == shown
    if shown:
        assert bars[0].get_width() == pytest.approx(2.5)
        ((low, _), (high, _)) = bars.errorbar.lines[2][0].get_segments()[0]
        assert high - low == pytest.approx(2 * 4.302653 * (0.5 / 0.6) / 3**0.5)
    else:
        assert "left out as the interval holds 0: language understanding" in axis.get_xlabel()


def test_intensity_is_below_its_bound_and_falls_without_residual():
    model = load_tiny_model("plain")
    blocks = [*model.network.blocks]
    X = torch.randn(2, 17, 12)
    for residual, mlp in ((False, False), (False, True), (True, False), (True, True)):
        measured, bounds = trace_intensity(blocks, X, residual, mlp)
        assert all(m <= b for m, b in zip(measured[1:], bounds, strict=True))
        assert len(measured) == LAYERS + 1


def test_maps_are_those_of_one_sample_without_padding_and_the_network_is_left_as_it_was():
    model = make_model()
    names = [*model.network.state_dict()]
    maps = model.maps
    assert [layer.A.shape for layer in maps] == [(HEADS, 17, 17)] * LAYERS
    assert torch.equal(maps[0].A, maps[0].H)
    torch.testing.assert_close(maps[0].A.sum(-1), torch.ones(HEADS, 17))
    assert [*model.network.state_dict()] == names
    mask = torch.ones(2, 17, dtype=torch.bool)
    mask[0, 13:] = False
    assert replace(model, mask=mask).maps[0].H.shape == (HEADS, 13, 13)


def test_runs_of_the_printed_setting_are_preferred_and_others_are_named(tmp_path):
    entry = find_figure("gfsa-2")
    for seed in (1, 0):
        write_run(tmp_path, method="plain", seed=seed)
    panels, notes = find_runs(entry, tmp_path)
    assert [path.name[:6] for path in panels[""]["vit"]] == ["seed-0", "seed-1"]
    assert "drawn from runs of vit on digits, profile smoke" in notes[0]
    assert "make vision DATA=imagenet_1k BACKBONE=deit_small METHOD=plain,gfsa" in notes[0]
    write_run(tmp_path, method="gfsa")
    printed = write_run(tmp_path, method="plain", data="imagenet_1k", backbone="deit_small")
    panels, notes = find_runs(entry, tmp_path)
    assert panels == {"": {"DeiT-S": [printed]}} == name_runs(entry, [str(printed)])
    assert any("DeiT-S + GFSA left out" in note for note in notes)


def test_figures_of_a_paper_are_drawn_or_said_to_be_missing(tmp_path, monkeypatch, capsys):
    runs = tmp_path / "runs"
    write_run(runs, "speech", "plain", scalars=SCALARS)
    arguments = [f"--folder={runs}", f"--results={tmp_path}", f"--out={tmp_path / 'out'}"]
    monkeypatch.setattr(sys, "argv", ["experiment_kit", "figures", "--paper=gfsa", *arguments])
    main()
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == ["gfsa-1.svg", "gfsa-7.svg"]
    said = capsys.readouterr().out
    assert "gfsa-2: not drawn: gfsa-2 cannot be drawn: no run of vision in" in said
    assert "Transformer + GFSA left out" in said


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["agf-1"], "agf-1 is a diagram, in which nothing is plotted"),
    (["gfsa-2", "--runs=[{nlp}]"], "is a run of nlp; gfsa-2 is drawn from runs of vision"),
    (["gfsa-2", "--folder={folder}"], "gfsa-2 cannot be drawn: no run of vision"),
    (["gfsa-2", "--model=timm:a", "--runs=[b]"], "gfsa-2 is not drawn from --runs and --model"),
    (["gfsa-1", "--out=gains.jpg"], "--out=gains.jpg ends in none of .svg, .png, .pdf"),
    (["record-straight-5", "--results={folder}"], "make table TABLE=record-straight-figure-5"),
    (["record-straight-7", "--runs=[{vision}]"], "its runs have no condition numbers"),
])  # fmt: skip
def test_a_mistake_is_one_sentence(arguments, sentence, tmp_path, monkeypatch, read_error):
    folders = {"folder": tmp_path, "nlp": write_run(tmp_path / "runs", "nlp"),
               "vision": write_run(tmp_path / "runs")}  # fmt: skip
    given = [argument.format(**folders) for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["experiment_kit", "figure", *given])
    assert sentence in read_error(main)
