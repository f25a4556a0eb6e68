"""A page is one file: contents, names with subscripts, tables, and no way out of its text."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest
from experiment_kit.pages.run_figures import FigureSet, PageFigure
from experiment_kit.pages.tables import PageTable, TableCell
from experiment_kit.pages.template import (
    TEMPLATES,
    add_contents,
    embed_figure,
    typeset,
    write_page,
)
from matplotlib.figure import Figure

TEMPLATE = """
{% extends "page.html" %}
{% block body %}
<h2>Results</h2>
{{ table(results) }}
{{ command(lines) }}
<h2>Figures</h2>
{{ figures(figure_set) }}
<h2>More</h2>
{% call disclosure("All settings") %}{{ key_values(settings) }}{% endcall %}
<h2>More</h2>
{% endblock %}
"""
VOID = {"meta", "source", "img", "input"}


class Structure(HTMLParser):
    """The elements of a page; an end tag that closes no open element is an error."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def draw(theme):
    figure = Figure()
    figure.subplots().plot([0, 1], color="C0")
    return figure


def write_sample(path, text="a_b", **context):
    """Write a page with everything that the macros have; all of its texts are one."""
    cells = [TableCell("plain", 98.0, is_best=True), TableCell(text, None, text, text, "worse")]
    given = {
        "title": text,
        "results": PageTable(text, ["method", text], [cells], text),
        "lines": [text],
        "figure_set": FigureSet({text: "top: 0"}, [PageFigure(embed_figure(draw, text), text)]),
        "settings": {text: text},
    }
    template = path.with_name("sample.html")
    template.write_text(TEMPLATE)
    write_page(path, template, **given | context)
    return path.read_text()


def test_a_page_nests_has_contents_and_allows_its_own_script_alone(tmp_path) -> None:
    page = write_sample(tmp_path / "page.html")
    structure = Structure(page)
    assert structure.open == []
    ids = [attributes["id"] for _, attributes in structure.tags if "id" in attributes]
    assert ids == ["results", "figures", "more", "more-2"]
    nav = page[page.index("<nav") : page.index("</nav>")]
    assert re.findall(r'href="#([\w-]+)"', nav) == ids
    assert "<nav" not in add_contents("<h2>a</h2>")
    script = page[page.index("<script>") + 8 : page.index("</script>")]
    assert script == (TEMPLATES / "page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page
    assert not re.search(r"https?:|<link|@import", page)
    assert '<td data-value="98.0"><strong>' not in page  # a row's name is a th
    assert "<strong>plain</strong>" in page
    assert '<span class="hidden"> worse</span>' in page


def test_a_figure_has_an_image_for_each_theme(tmp_path) -> None:
    image = embed_figure(draw, "depth & rank")
    assert image == embed_figure(draw, "depth & rank")
    assert 'alt="depth &amp; rank"' in image
    dark, light = (
        base64.b64decode(data).decode() for data in re.findall(r"base64,([^\"]+)", image)
    )
    assert ("#2a78d6" in light, "#6cb0ff" in dark) == (True, True)
    assert "#2a78d6" not in dark


@pytest.mark.parametrize(("text", "html"), [
    ("BERT_{BASE} + GFSA", "BERT<sub>BASE</sub> + GFSA"),
    ("RoBERTaBASE + GFSAeven", "RoBERTa<sub>BASE</sub> + GFSA<sub>even</sub>"),
    ("model.filter.w_0 val_loss", "model.filter.w<sub>0</sub> val_loss"),
    ("x^2 <b>", "x<sup>2</sup> &lt;b&gt;"),
    ("E_K, __init__, a_, _", "E<sub>K</sub>, __init__, a_, _"),
])  # fmt: skip
def test_names_have_subscripts_and_words_keep_their_underscores(text, html) -> None:
    assert typeset(text) == html


def test_text_of_a_page_is_escaped_wherever_it_stands(tmp_path) -> None:
    page = write_sample(tmp_path / "page.html", '"><script>alert(1)</script>')
    assert page.count("<script") == 1
    assert page.count("&lt;script&gt;alert") > 10
