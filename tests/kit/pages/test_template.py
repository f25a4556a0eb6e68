"""A page is one file: contents, names with subscripts, tables, and no way out of its text."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from experiment_kit.pages.svg import Panel
from experiment_kit.pages.tables import Cell, PageTable
from experiment_kit.pages.template import TEMPLATES, add_contents, typeset, write_page
from markupsafe import Markup

from tests.kit.pages.sample import write_sample

VOID = {"meta", "link", "br", "hr", "img"}


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

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_sample(tmp_path_factory.mktemp("page") / "page.html").read_text()


def test_the_elements_of_a_page_nest_and_close(page) -> None:
    structure = Structure(page)
    assert structure.open == []
    ids = [attributes["id"] for _, attributes in structure.tags if "id" in attributes]
    assert len(ids) == len({*ids})
    targets = {a["href"][1:] for _, a in structure.tags if a.get("href", "").startswith("#")}
    assert targets <= {*ids}


def test_each_h2_is_an_entry_of_the_contents(page) -> None:
    nav = page[page.index("<nav") : page.index("</nav>")]
    assert re.findall(r'href="#([\w-]+)"', nav) == ["results", "figures", "more", "more-2"]
    assert "<nav" not in add_contents("<h2>a</h2>")


def test_the_policy_of_a_page_allows_its_own_script_alone(page) -> None:
    script = page[page.index("<script>") + 8 : page.index("</script>")]
    assert script == (TEMPLATES / "page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page
    assert not re.search(r"https?:|<link|@import", page)


def test_a_cell_says_in_words_what_its_color_says(page) -> None:
    assert "<strong>99.0</strong>" in page
    assert '<span class="hidden"> worse</span>' in page
    assert '<td data-value="98.0">' in page


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
    bad = '"><script>alert(1)</script>'
    table = PageTable(bad, [bad], [[Cell(bad, note=bad, href=bad, difference=bad)]], bad)
    figures = SimpleNamespace(
        legend={bad: "top: 0"},
        figures=[SimpleNamespace(panels=[Panel(Markup("<svg></svg>"), True)], caption=bad)],
    )
    page = write_sample(tmp_path / "page.html", title=bad, results=table, figure_set=figures,
                        settings={bad: bad}, lines=[bad]).read_text()  # fmt: skip
    assert page.count("<script") == 1
    assert page.count("&lt;script&gt;alert") > 10


def test_a_template_that_names_what_is_not_given_is_an_error(tmp_path) -> None:
    template = tmp_path / "own.html"
    template.write_text('{% extends "page.html" %}{% block body %}{{ absent }}{% endblock %}')
    with pytest.raises(Exception, match="'absent' is undefined"):
        write_page(tmp_path / "page.html", template, title="a")
