"""Figures as SVG: split in panels, in variables of the page, the same bytes each time."""

import re
from xml.etree import ElementTree

import pytest
from experiment_kit.pages.svg import SERIES, draw_panels
from matplotlib.figure import Figure


def draw_lines():
    figure = Figure(figsize=(9, 2))
    for i, axis in enumerate(figure.subplots(1, 3, sharey=True)):
        axis.plot([0, 1, 2], [0, 1, i], "o-", color=SERIES[i], clip_on=True)
        axis.set(title=f"panel <{i}>", xlabel="block")
    figure.axes[0].set_ylabel("gain")  # of all, as they share the axis
    return figure


def test_each_panel_is_an_image_with_a_name_and_the_labels_of_a_shared_axis() -> None:
    panels = draw_panels(draw_lines, "depth & rank")
    trees = [ElementTree.fromstring(panel.image) for panel in panels]
    assert not any(panel.is_wide for panel in panels)
    names = [tree.attrib["aria-label"] for tree in trees]
    assert names == [f"depth & rank: panel <{i}>" for i in range(3)]
    for i, tree in enumerate(trees):
        texts = {"".join(text.itertext()).strip() for text in tree.iter("text")}
        assert {"block", "gain", f"panel <{i}>", "0.0", "2.0"} <= texts
        widths = float(tree.attrib["viewBox"].split()[2])
        assert 100 < widths < 230
    assert trees[0].attrib["viewBox"] != trees[1].attrib["viewBox"]


def test_colors_are_variables_of_the_page_and_nothing_reaches_out_of_the_image() -> None:
    text = "".join(panel.image for panel in draw_panels(draw_lines, "depth"))
    assert not re.search(r"#[0-9a-f]{6}\b|<style|<metadata|xmlns|xlink|https?:", text)
    assert all(f"stroke: var(--series-{i})" in text for i in range(3))
    assert "fill: var(--ink)" in text
    assert "font-family" not in text


def test_ids_are_unique_on_a_page_and_every_reference_has_its_target() -> None:
    def draw_other():
        figure = draw_lines()
        figure.axes[0].set_ylim(-3, 3)
        return figure

    text = "".join(p.image for draw in (draw_lines, draw_other) for p in draw_panels(draw, "a"))
    ids = re.findall(r'\bid="([^"]+)"', text)
    used = {*re.findall(r'href="#([^"]+)"', text), *re.findall(r"url\(#([^)]+)\)", text)}
    assert len(ids) == len({*ids})
    assert used <= {*ids}
    assert used


def test_the_legend_of_all_panels_is_an_image_above_them() -> None:
    def draw():
        figure = draw_lines()
        figure.legend([axis.lines[0] for axis in figure.axes], ["plain", "gfsa", "agf"])
        figure.axes[1].legend([figure.axes[1].lines[0]], ["own"])
        return figure

    legend, *others = draw_panels(draw, "depth")
    assert [legend.is_legend, *(panel.is_legend for panel in others)] == [True] + [False] * 3
    assert all(f">{name}<" in legend.image for name in ("plain", "gfsa", "agf"))
    assert [">own<" in panel.image for panel in others] == [False, True, False]
    assert 'aria-label="depth: legend"' in legend.image


def test_a_figure_is_the_same_bytes_each_time() -> None:
    assert draw_panels(draw_lines, "depth") == draw_panels(draw_lines, "depth")


@pytest.mark.parametrize("kind", ["split is off", "a title", "a color bar"])
def test_a_figure_that_cannot_be_split_is_one_wide_image(kind) -> None:
    def draw():
        figure = draw_lines()
        if kind == "a title":
            figure.suptitle("layers")
        if kind == "a color bar":
            figure.colorbar(figure.axes[0].imshow([[0, 1]]), ax=figure.axes)
        return figure

    (panel,) = draw_panels(draw, "heads", split=kind != "split is off")
    assert panel.is_wide
    assert ElementTree.fromstring(panel.image).attrib["viewBox"].startswith("0 0 648 144")
    assert "panel &lt;2&gt;" in panel.image
