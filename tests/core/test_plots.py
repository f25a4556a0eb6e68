"""Figures of made-up numbers: panels, lines, labels, and files with the same bytes twice."""

import math
import sys
from dataclasses import replace
from importlib import import_module

import pytest
from attention_core import plots

from tests.core.diagnoses import make_layer, make_report

CURVES = {"plain": [1.0, 0.5, 0.2], "gfsa": [1.0, 0.9, 0.8]}
GRID = [[[1.0, 0.5, 0.1], [1.0, 0.2, 0.05]]] * 3
LAYERS = [make_layer(i, changes={"attention": -0.2, "MLP": 0.05 * i}) for i in range(5)]
DIAGNOSIS = make_report(layers=LAYERS).to_dict()
SMOOTHING = {
    label: {"response": curve, "signed_token_cosine": curve, "singular_values": curve}
    for label, curve in CURVES.items()
}
# the drawing, its panels, and the lines (or bars, images) of each
FIGURES = {
    "curves": (lambda: plots.plot_curves({"a": CURVES, "b": CURVES}, "epoch", "loss"), 2, 2),
    "depth": (lambda: plots.plot_depth_profiles({m: {"hfc_lfc": c} for m, c in CURVES.items()},
                                                ["hfc_lfc"]), 1, 2),
    "frequency": (lambda: plots.plot_frequency_responses({"a": CURVES.values(),
                                                          "b": CURVES.values()}), 2, 2),
    "smoothing": (lambda: plots.plot_smoothing(SMOOTHING), 3, 2),
    "grid": (lambda: plots.plot_spectra_grid(GRID), 6, 1),
    "maps": (lambda: plots.plot_attention_maps({"plain": {"layer 1": [[1.0, 0.0]] * 2}}), 1, 0),
    "diagnosis": (lambda: plots.plot_diagnosis(DIAGNOSIS), 6, None),
}  # fmt: skip


@pytest.mark.parametrize("name", FIGURES)
def test_figure_has_its_panels_lines_and_labels(name):
    draw, panels, lines = FIGURES[name]
    with plots.use_style():
        figure = draw()
    assert len(figure.axes) == panels
    for axis in figure.axes:
        assert lines is None or len(axis.lines) == lines
        assert axis.get_xlabel() or figure.get_supxlabel()
        assert axis.get_ylabel() or axis.get_title("left") or figure.get_supylabel()


def test_a_figure_has_the_same_bytes_twice_and_others_in_another_theme():
    draw = FIGURES["smoothing"][0]
    light, again, dark = (plots.render_figure(draw, theme=t) for t in ("light", "light", "dark"))
    assert light == again != dark
    assert b"<dc:date>" not in light
    assert plots.render_figure(draw, "png")[1:4] == b"PNG"


def test_lines_and_legends_of_smoothing():
    assert len(plots.plot_smoothing(SMOOTHING).legends) == 1
    lines = {"plain": {"color": "black"}, "gfsa": {"color": "red", "linestyle": "dashed"}}
    figure = plots.plot_smoothing(SMOOTHING, lines)
    assert [line.get_color() for line in figure.axes[1].lines] == ["black", "red"]
    assert not figure.legends
    data = {**SMOOTHING, "plain": {"signed_token_cosine": CURVES["plain"]}}
    with plots.use_style():
        figure = plots.plot_smoothing(data)  # a method keeps its color where another has no data
    alone, both = figure.axes[0].lines, figure.axes[1].lines
    assert [line.get_color() for line in alone] == [both[1].get_color()]


def test_bars_are_the_changes_of_each_kind_of_step():
    layers = DIAGNOSIS["layers"]
    axis = plots.plot_diagnosis(DIAGNOSIS).axes[2]
    for bars in axis.containers:
        heights = [layer["changes"][bars.get_label()] for layer in layers]
        assert [bar.get_height() for bar in bars] == pytest.approx(heights)
    assert {bars.get_label() for bars in axis.containers} == {*layers[0]["changes"]}


def test_layers_keep_their_numbers_where_some_are_left_out():
    diagnosis = {**DIAGNOSIS, "layers": [DIAGNOSIS["layers"][i] for i in (2, 4)]}
    depth, _, steps, *_, shares = plots.plot_diagnosis(diagnosis).axes
    assert depth.lines[0].get_xdata().tolist() == [2, 3, 5]
    bars = (axis.containers[1] for axis in (steps, shares))
    centers = [[bar.get_x() + bar.get_width() / 2 for bar in row] for row in bars]
    assert centers == [pytest.approx([2.2, 4.2]), pytest.approx([2, 4])]


def test_cells_of_a_grid_have_their_numbers_and_the_same_limits_around_all_gains():
    axes = plots.plot_spectra_grid(GRID, first=0).axes
    assert (axes[0].get_title(), axes[0].get_ylabel()) == ("head 0", "0")
    assert len({axis.get_ylim() for axis in axes}) == 1
    low, high = axes[0].get_ylim()
    assert 0 < low < 0.05 < 1.0 < high < 1.5


def test_undefined_numbers_and_shares_are_left_out():
    layers = [replace(layer, eigenvalue_shares=None) for layer in LAYERS]
    layers[1] = replace(layers[1], responses=[[math.nan] * 2] * 2)
    diagnosis = make_report(layers=layers).to_dict()
    diagnosis["layers"][1]["steps"]["mlp"]["trimmed_hfc_lfc"] = None
    assert math.isnan(plots.plot_diagnosis(diagnosis).axes[0].lines[0].get_ydata()[2])


def test_maps_are_pooled_by_their_maximum():
    A = [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.5]]
    image = plots.plot_attention_maps({"plain": {"layer 1": A}}, pooling=2).axes[0].images[0]
    assert image.get_array().tolist() == [[1.0, 0.0], [0.0, 0.5]]


@pytest.mark.parametrize("options", [{"format": "bmp"}, {"theme": "sepia"}])
def test_an_unknown_format_or_theme_is_refused(options):
    with pytest.raises(ValueError, match="must be one of"):
        plots.render_figure(FIGURES["depth"][0], **options)


def test_importing_the_figures_does_not_import_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("attention_core.plots", plots)  # to be bound again at the end
    for name in [name for name in sys.modules if name.startswith("attention_core.plots")]:
        monkeypatch.delitem(sys.modules, name)
    assert import_module("attention_core.plots").__name__ == "attention_core.plots"
