"""Static pages: one file of HTML that needs no network, from a Jinja2 template.

A page extends `page.html`, which says how; `macros.html` has tables, figures and lists.
"""

import base64
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from attention_core.plots import render_figure
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from experiment_kit.run import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATES = Path(str(files("experiment_kit.pages"))) / "templates"
MIN_HEADINGS = 2  # of a page with a table of contents
_HEADING = re.compile(r"<h2>(.*?)</h2>", re.DOTALL)
_SCRIPT_POINT = re.compile(r"([_^])(?:\{((?:[^{}]|\{[^{}]*\})*)\}|(\w))")  # a_{b}, a^2
# subscripts that the text of a paper's table has lost, as in BERTBASE
_LOST_SUBSCRIPT = re.compile(r"(?<=BERT)BASE\b|(?<=BERTa)BASE\b|(?<=GFSA)even\b")


def write_page(path: Path, template: str | Path, **context: Any) -> None:
    """Render a template of this package, or one that extends them, into one file."""
    template = TEMPLATES / template
    loader = FileSystemLoader([template.parent, TEMPLATES])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters |= {"typeset": typeset, "add_contents": add_contents}
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    inline = {"script": Markup(script), "script_digest": digest}
    write_atomically(path, environment.get_template(template.name).render(**inline, **context))


def embed_figure(draw: Callable[[str], "Figure"], label: str) -> Markup:
    """Draw a figure in both themes; return an image for each, with a name for screen readers."""
    files = [render_figure(partial(draw, theme), theme=theme) for theme in ("light", "dark")]
    light, dark = (f"data:image/svg+xml;base64,{base64.b64encode(f).decode()}" for f in files)
    return Markup(
        '<picture><source media="(prefers-color-scheme: dark)" srcset="{}">'
        '<img src="{}" alt="{}"></picture>'
    ).format(dark, light, label)


def typeset(text: str) -> Markup:
    """Return HTML with the subscripts and superscripts of a name.

    >>> print(typeset("H_{UV^T} < w_0"))
    H<sub>UV<sup>T</sup></sub> &lt; w<sub>0</sub>
    """
    marked = _LOST_SUBSCRIPT.sub(r"_{\g<0>}", text)
    return Markup("").join(_typeset_parts(marked))


def _typeset_parts(text: str) -> Iterator[Markup]:
    end = 0
    for found in _SCRIPT_POINT.finditer(text):
        if found[1] == "_" and found[3] is not None:  # val_loss is a word, w_0 is not
            letters = re.search(r"[^\W_]*$", text[: found.start()])
            if len(letters[0] if letters else "") != 1 or re.match(r"\w", text[found.end() :]):
                continue
        yield escape(text[end : found.start()])
        tag = "sub" if found[1] == "_" else "sup"
        inner = escape(found[3]) if found[3] is not None else typeset(found[2])
        yield Markup("<{0}>{1}</{0}>").format(Markup(tag), inner)
        end = found.end()
    yield escape(text[end:])


def add_contents(html: str) -> Markup:
    """Give each h2 an id, and put a table of contents in front where there are several.

    >>> print(add_contents("<h2>Runs</h2>"))
    <h2 id="runs">Runs</h2>
    """
    entries: list[tuple[str, str]] = []

    def add_id(found: re.Match[str]) -> str:
        plain = re.sub(r"<[^>]*>|&[^;]*;", "", found[1])
        name = re.sub(r"\W+", "-", plain.lower()).strip("-") or "section"
        count = sum(re.fullmatch(rf"{name}(-\d+)?", other) is not None for other, _ in entries)
        entries.append((f"{name}-{count + 1}" if count else name, found[1]))
        return f'<h2 id="{entries[-1][0]}">{found[1]}</h2>'

    body = _HEADING.sub(add_id, html)
    if len(entries) < MIN_HEADINGS:
        return Markup(body)
    links = "\n".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in entries)
    return Markup(f'<nav aria-label="Contents"><ul>\n{links}\n</ul></nav>\n{body}')


def link_file(file: Path, page: Path) -> str:
    """Return the address of a file relative to the page that names it.

    >>> link_file(Path("runs/a b/log.txt"), Path("runs/reports/page.html"))
    '../a%20b/log.txt'
    """
    return quote(Path(os.path.relpath(file, page.parent)).as_posix())
