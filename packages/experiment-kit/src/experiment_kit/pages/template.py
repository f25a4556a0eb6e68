"""Static pages: one file of HTML that needs no network, from a Jinja2 template.

A page extends `page.html`; `macros.html` has tables, figures and lists.
"""

import base64
import os
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from attention_core.plots import render_figure
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from experiment_kit.run import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_page(path: Path, template: str, **context: Any) -> None:
    """Render a template of this package into one file; `command` is the one that is running."""
    environment = Environment(
        loader=PackageLoader("experiment_kit.pages"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    command = shlex.join(["allpass", *sys.argv[1:]])
    text = environment.get_template(template).render(command=command, **context)
    write_atomically(path, text)


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
