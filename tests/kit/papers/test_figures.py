"""Every printed figure is drawn from tiny models and made-up runs and results."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import matplotlib
import pandas as pd
import pytest
import torch
from attention_core import plots
from experiment_kit.papers.figures import DRAWINGS, find_figures, find_runs
from matplotlib.container import BarContainer

from tests.kit.conftest import make_measurement
from tests.kit.papers.figure_sources import HEADS, LAYERS, make_model, write_run
from tests.processes import run_allpass

ENTRIES = find_figures("all")
# lines, bars or images of all panels together, from the sources below
SERIES = {
    "gfsa-1": 13, "gfsa-2": 8, "gfsa-3": 9, "gfsa-4": 8, "gfsa-5": 8, "attnscale-4": 6,
    "attnscale-5": LAYERS * HEADS, "attnscale-8": 2 * LAYERS, "attnscale-9": LAYERS * HEADS,
    "attnscale-10": LAYERS * HEADS, "attnscale-11": 4, "attnscale-12": 6, "agf-3": 8,
    "record-straight-2": 5, "record-straight-4": 4,
}  # fmt: skip


def draw_entry(name: str, results: Path):
    """Draw a figure from a model for each of its methods, or from results."""
    entry = ENTRIES[name]
    models = {
        label: make_model(method if method != "agf" else "gfsa")
        for group in entry.groups
        for method, label in group.methods.items()
    }
    return DRAWINGS[entry.draw](models or results, 7.0, **entry.options)


def count_series(figure) -> int:
    lines = [line.get_linestyle() for axis in figure.axes for line in axis.lines]
    others = sum(len(axis.patches) + len(axis.images) for axis in figure.axes)
    return others + sum(style not in (None, "dotted", ":") for style in lines)


def test_the_docs_name_every_figure():
    text = (Path(__file__).parents[3] / "docs" / "figures.md").read_text()
    assert all(f"`{name}`" in text for name in ENTRIES)


@pytest.mark.parametrize("name", ENTRIES)
def test_every_figure_is_drawn_with_labels_and_its_series(name, tmp_path):
    with plots.use_style():
        figure = draw_entry(name, tmp_path)
    for axis in figure.axes:
        assert axis.get_xlabel() or figure.get_supxlabel() or not axis.get_xticklabels()
        assert axis.get_ylabel() or figure.get_supylabel() or axis.get_title("left")
    assert count_series(figure) == SERIES[name]


@pytest.mark.parametrize(("first", "scores", "shown"), [
    (60.0, (61.0, 62.0, 61.5), 1), (60.0, (61.0, 59.0, 60.5), 0), (0.0, (61.0, 62.0, 61.5), 0),
])  # fmt: skip
def test_a_measured_gain_is_shown_unless_its_interval_holds_0(first, scores, shown, tmp_path):
    rows = {"softmax-roberta_base": (first, 60.0, 60.0), "gfsa-roberta_base": scores}
    lines = [make_measurement(table="gfsa-table-1", row=row, column="cola", seed=i, value=value)
             for row, values in rows.items() for i, value in enumerate(values)]  # fmt: skip
    pd.DataFrame(lines).to_csv(tmp_path / "gfsa-table-1.csv", index=False)
    figure = draw_entry("gfsa-1", tmp_path)
    bars = [c for c in figure.axes[0].containers if isinstance(c, BarContainer)]
    assert len(bars) == 2 + shown
    if shown:
        (bar,) = (bar for bar in bars[-1] if bar.get_width() == bar.get_width())
        assert bar.get_width() == pytest.approx(2.5)
        segments = bars[-1].errorbar.lines[2][0].get_segments()
        ((low, _), (high, _)) = next(s for s in segments if len(s) and s[0][0] == s[0][0])
        assert high - low == pytest.approx(2 * 4.302653 * (0.5 / 0.6) / 3**0.5)
    assert ("0: language under" in figure.get_supxlabel()) == (first > 0 and not shown)


def test_the_published_figure_is_that_of_the_published_results():
    published = Path("docs/figures/gfsa-1.svg").read_bytes()
    if matplotlib.__version__.encode() in published:
        drawn = plots.render_figure(partial(draw_entry, "gfsa-1", Path("docs/results")))
        assert drawn == published, "make figure FIGURE=gfsa-1 OUT=docs/figures"


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
    (group,) = ENTRIES["gfsa-2"].groups
    for seed in (1, 0):
        write_run(tmp_path, method="plain", seed=seed)
    runs, notes = find_runs(group, tmp_path)
    assert {label: path.name[:6] for label, path in runs.items()} == {"vit": "seed-0"}
    assert "drawn from runs of vit on digits, profile smoke" in notes[0]
    assert "PROFILE=paper DATA=imagenet_1k BACKBONE=deit_small METHOD=plain,gfsa" in notes[0]
    write_run(tmp_path, method="gfsa")
    printed = write_run(tmp_path, method="plain", data="imagenet_1k", backbone="deit_small")
    runs, notes = find_runs(group, tmp_path)
    assert runs == {"DeiT-S": printed}
    assert any("DeiT-S + GFSA left out" in note for note in notes)


def test_figures_of_a_paper_are_drawn_or_said_to_be_missing(tmp_path, capsys):
    arguments = [f"--folder={tmp_path}", f"--results={tmp_path}", f"--out={tmp_path / 'out'}"]
    run_allpass("figure", "gfsa", *arguments)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["gfsa-1.svg"]
    assert "gfsa-2: not drawn: no run of vision in" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["agf-x-1"], "There is no figure or paper named 'agf-x-1'"),
    (["gfsa-6"], "docs/figures.md has the others"),
    (["gfsa-2", "--folder={folder}"], "gfsa-2 cannot be drawn: no run of vision"),
    (["gfsa-2", "--model=hf:a/none,hf:b/none"], "transformers cannot load a/none"),
    (["gfsa-1", "--model=timm:a"], "gfsa-1 cannot be drawn: it shows no model"),
    (["gfsa-1", "--width=-1"], "width: Not of type PositiveFloat: -1 does not conform"),
    (["gfsa", "--out=gains.svg"], "--out=gains.svg is one file: name a folder for 5 figures"),
    (["gfsa-1", "--out=gains.jpg"], "--out=gains.jpg ends in none of .svg, .png, .pdf"),
])  # fmt: skip
def test_a_mistake_is_one_sentence(arguments, sentence, tmp_path, read_error):
    given = [argument.format(folder=tmp_path) for argument in arguments]
    assert sentence in read_error(run_allpass, "figure", *given)
