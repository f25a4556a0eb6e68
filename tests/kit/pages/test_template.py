"""A page is one file: contents, tables, figures, and no way out of its text."""

import base64
import re

from experiment_kit.pages.run_figures import PageFigure
from experiment_kit.pages.tables import PageTable, TableCell
from experiment_kit.pages.template import embed_figure, write_page
from matplotlib.figure import Figure


def draw(theme):
    figure = Figure()
    figure.subplots().plot([0, 1], color="C0")
    return figure


def write_sample(path, text="a_b"):
    """Write a page of a comparison, all of whose texts are one."""
    cells = [TableCell("plain", 98.0), TableCell(text, 9.0, is_best=True, href=text)]
    table = PageTable(text, ["method", text], [cells] * 2, text)
    figures = [PageFigure(embed_figure(draw, text), text)]
    tables = dict.fromkeys(("results", "own", "differing", "runs"), table)
    context = {"title": text, "shared": {text: text}, "figures": figures}
    write_page(path, "compare.html", **context, **tables)
    return path.read_text()


def test_a_page_has_contents_and_stands_alone(tmp_path) -> None:
    page = write_sample(tmp_path / "page.html")
    nav = page[page.index("<nav") : page.index("</nav>")]
    assert re.findall(r'href="#([\w-]+)"', nav) == ["Results", "Figures", "Settings", "Runs"]
    assert '<th scope="row" data-value="98.0">plain</th>' in page
    assert '<td data-value="9.0"><a href="a_b"><strong>a_b</strong></a></td>' in page
    assert not re.search(r"https?:|<link|@import", page)


def test_a_figure_has_an_image_for_each_theme(tmp_path) -> None:
    image = embed_figure(draw, "depth & rank")
    assert image == embed_figure(draw, "depth & rank")
    assert 'alt="depth &amp; rank"' in image
    dark, light = (
        base64.b64decode(data).decode() for data in re.findall(r"base64,([^\"]+)", image)
    )
    assert ("#2a78d6" in light, "#6cb0ff" in dark) == (True, True)
    assert "#2a78d6" not in dark


def test_text_of_a_page_is_escaped_wherever_it_stands(tmp_path) -> None:
    page = write_sample(tmp_path / "page.html", '"><script>alert(1)</script>')
    assert page.count("<script") == 1
    assert page.count("&lt;script&gt;alert") > 8
