"""A page is one file that stands alone; the best of a column overlaps no other one."""

import base64
import math
import re

import pytest
from experiment_kit.pages import tables as pages
from experiment_kit.pages.records import PageFigure
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from scipy.stats import t

ESTIMATES = st.dictionaries(
    st.text(max_size=3),
    st.builds(pages.MeanDeviation, st.floats(-9, 9), st.floats(0, 2), st.integers(1, 9)),
    max_size=5,
)


@given(st.floats(0, 9), st.integers(2, 30))
def test_the_interval_is_that_of_student(std, count) -> None:
    _, high = t.interval(0.95, count - 1, scale=max(std, 1e-9) / math.sqrt(count))
    assert pages.MeanDeviation(1.0, std, count).half_width == pytest.approx(high, abs=1e-7)


@given(ESTIMATES)
def test_the_best_of_higher_is_the_best_of_lower_of_the_opposites(estimates) -> None:
    opposites = {key: pages.MeanDeviation(-e.mean, e.std, e.count) for key, e in estimates.items()}
    best = pages.find_best(estimates, True)
    assert pages.find_best(opposites, False) == best
    if best is not None:
        e = estimates[best]
        others = [o for key, o in estimates.items() if key != best]
        assert all(e.mean - e.half_width > o.mean + o.half_width for o in others)


def draw(theme):
    figure = Figure()
    figure.subplots().plot([0, 1], color="C0")
    return figure


def write_sample(path, text="a_b"):
    """Write a page of a comparison, all of whose texts are one."""
    table = pages.PageTable(text, ["method", text], [["plain", text]] * 2, text, [(0, 1)])
    figures = [PageFigure(pages.embed_figure(draw, text), text)]
    tables = dict.fromkeys(("results", "own", "differing", "runs"), table)
    pages.write_page(path, "compare.html", title=text, figures=figures, **tables)
    return path.read_text()


def test_a_page_has_contents_and_stands_alone(tmp_path) -> None:
    page = write_sample(tmp_path / "page.html")
    nav = page[page.index("<nav") : page.index("</nav>")]
    assert re.findall(r'href="#([\w-]+)"', nav) == ["Results", "Figures", "Settings", "Runs"]
    assert '<th scope="row">plain</th><td><strong>a_b</strong></td>' in page
    assert not re.search(r"https?:|<link|@import", page)


def test_a_figure_has_an_image_for_each_theme() -> None:
    image = pages.embed_figure(draw, "depth & rank")
    assert 'alt="depth &amp; rank"' in image
    files = (base64.b64decode(data).decode() for data in re.findall(r"base64,([^\"]+)", image))
    assert [("#2a78d6" in x, "#6cb0ff" in x) for x in files] == [(False, True), (True, False)]


def test_text_of_a_page_is_escaped_wherever_it_stands(tmp_path) -> None:
    page = write_sample(tmp_path / "page.html", '"><script>alert(1)</script>')
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert") > 8
