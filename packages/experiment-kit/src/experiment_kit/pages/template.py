"""Static pages: one file of HTML that needs no network, from a Jinja2 template.

A page extends `page.html`, which says how; `macros.html` has tables, figures and lists.
"""

import base64
import os
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from attention_core.plots import render_figure
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from experiment_kit.run import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATES = Path(str(files("experiment_kit.pages"))) / "templates"


def write_page(path: Path, template: str | Path, **context: Any) -> None:
    """Render a template of this package, or one that extends them, into one file."""
    template = TEMPLATES / template
    loader = FileSystemLoader([template.parent, TEMPLATES])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    write_atomically(path, environment.get_template(template.name).render(**context))


def embed_figure(draw: Callable[[str], "Figure"], label: str) -> Markup:
    """Draw a figure in both themes; return an image for each, with a name for screen readers."""
    files = [render_figure(partial(draw, theme), theme=theme) for theme in ("light", "dark")]
    light, dark = (f"data:image/svg+xml;base64,{base64.b64encode(f).decode()}" for f in files)
    return Markup(
        '<picture><source media="(prefers-color-scheme: dark)" srcset="{}">'
        '<img src="{}" alt="{}"></picture>'
    ).format(dark, light, label)


def link_file(file: Path, page: Path) -> str:
    """Return the address of a file relative to the page that names it.

    >>> link_file(Path("runs/a b/log.txt"), Path("runs/reports/page.html"))
    '../a%20b/log.txt'
    """
    return quote(Path(os.path.relpath(file, page.parent)).as_posix())
