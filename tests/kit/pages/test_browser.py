"""Pages in headless Chromium: quiet, alone, sorted by keyboard, of any width, and on paper."""

import base64
import re
import time

import pytest

from tests.kit.pages.browser import find_chromium, start_browser
from tests.kit.pages.sample import write_sample

pytest.importorskip("aiohttp", reason="aiohttp, which talks to Chromium, is not installed")
PROGRAM = find_chromium()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="Chromium is not installed: apt-get install chromium"
)
TABLE = "document.querySelectorAll('table')[0]"
ORDER = f"[...{TABLE}.tBodies[0].rows].map(row => row.cells[0].textContent).join(' ')"
SORTS = f"[...{TABLE}.tHead.rows[0].cells].map(cell => cell.getAttribute('aria-sort'))"
FONT_SIZES = """
[...document.querySelectorAll('svg text')].map(text =>
  parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a)
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_sample(tmp_path_factory.mktemp("page") / "page.html")


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with start_browser(PROGRAM, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(tab, page):
    """Return a tab that has just loaded the page, at the width of a laptop."""
    tab.set_screen(1280)
    tab.open_page(page)
    return tab


def focus_head(browser, column: int) -> None:
    """Reach the button of a head by Tab alone, from the top of the page."""
    browser.evaluate("document.activeElement.blur()")
    for _ in range(100):
        browser.press_key("Tab")
        head = f"{TABLE}.tHead.rows[0].cells[{column}]"
        if browser.evaluate(f"{head}.contains(document.activeElement)"):
            return
    pytest.fail(f"no Tab reaches column {column}")


def test_a_page_makes_no_error_no_console_text_and_no_request(browser, page) -> None:
    bad = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}
    assert not [event for event in browser.events if event["method"] in bad]
    requests = [
        event["params"]["request"]["url"]
        for event in browser.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert requests == [page.as_uri()]


def test_a_script_in_the_text_of_a_page_does_not_run(tab, tmp_path) -> None:
    page = write_sample(tmp_path / "page.html")
    page.write_text(page.read_text().replace("</main>", "<script>window.ran = 1</script></main>"))
    tab.open_page(page)
    assert tab.evaluate("window.ran") is None
    refused = [event for event in tab.events if event["method"] == "Log.entryAdded"]
    assert len(refused) == 1


def test_enter_and_space_sort_a_column_and_what_is_not_measured_stays_last(browser) -> None:
    focus_head(browser, 1)
    found = []
    for key in ("Enter", " ", "Enter"):
        browser.press_key(key)
        found.append((browser.evaluate(ORDER), browser.evaluate(SORTS)[1]))
    assert found == [
        ("w0 plain gfsa agf", "ascending"),
        ("gfsa plain w0 agf", "descending"),
        ("plain gfsa agf w0", None),
    ]


def test_one_column_at_a_time_is_sorted_and_names_sort_as_text(browser) -> None:
    focus_head(browser, 1)
    browser.press_key("Enter")
    focus_head(browser, 0)
    browser.press_key("Enter")
    assert browser.evaluate(ORDER) == "agf gfsa plain w0"
    assert browser.evaluate(SORTS) == ["ascending", None, None]


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_no_width_makes_the_page_itself_scroll_sideways(browser, width) -> None:
    browser.set_screen(width)
    browser.evaluate("for (const box of document.querySelectorAll('details')) box.open = true")
    assert browser.evaluate("document.scrollingElement.scrollWidth") <= width
    sizes = browser.evaluate(FONT_SIZES)
    assert min(sizes) >= 11
    assert len({round(size) for size in sizes}) < 12


def test_what_is_too_wide_says_so_and_scrolls_by_keyboard(browser) -> None:
    browser.set_screen(390)
    browser.evaluate("dispatchEvent(new Event('resize'))")
    boxes = browser.evaluate("""[...document.querySelectorAll('.wide')].map(box =>
      [box.scrollWidth > box.clientWidth + 1, box.tabIndex,
       getComputedStyle(box, '::before').content])""")
    for is_wide, tab_index, hint in boxes:
        assert (tab_index == 0, "scroll" in hint) == (is_wide, is_wide)
    assert [is_wide for is_wide, *_ in boxes][-1]


@pytest.mark.parametrize(("theme", "media"), [("dark", "screen"), ("light", "screen"),
                                              ("dark", "print")])  # fmt: skip
def test_figures_and_text_have_the_colors_of_the_theme(browser, theme, media) -> None:
    browser.set_screen(1280, theme=theme, media=media)
    paper, ink, text = browser.evaluate("""[getComputedStyle(document.documentElement)
      .getPropertyValue('--paper'), getComputedStyle(document.body).color,
      getComputedStyle(document.querySelector('svg text')).fill]""")
    assert ink == text
    bright = sum(map(int, re.findall(r"\d+", ink))) / 3
    is_dark = (theme, media) == ("dark", "screen")
    assert (bright > 200, paper == "#161615") == (is_dark, is_dark)


def test_paper_shows_what_is_on_demand_and_the_screen_hides_it_again(browser) -> None:
    shown = "[...document.querySelectorAll('details')].map(box => box.open)"
    assert not any(browser.evaluate(shown))
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert all(browser.evaluate(shown))
    browser.evaluate("dispatchEvent(new Event('afterprint'))")
    assert not any(browser.evaluate(shown))
    pdf = base64.b64decode(browser.call("Page.printToPDF")["data"])
    assert pdf.startswith(b"%PDF")


def test_a_link_opens_what_holds_its_aim(browser) -> None:
    box = "document.getElementById('plain-small').closest('details').open"
    assert not browser.evaluate(box)
    browser.evaluate("location.hash = '#plain-small'")
    end = time.monotonic() + 10
    while not browser.evaluate(box):
        assert time.monotonic() < end, "the link opens nothing"
    others = "document.querySelectorAll('details[open]').length"
    assert browser.evaluate(others) == 1
