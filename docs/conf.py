"""Settings of the documentation's build: `make docs`."""

import os
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# the pages run in processes of their own, which import what draws the figures
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(HERE / "figures"), os.environ.get("PYTHONPATH")])
)
os.environ["PYTHONWARNINGS"] = "ignore"  # every notebook warns of a progress bar without widgets

project, author, copyright = "Allpass", "the Allpass authors", "the Allpass authors"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
    "sphinx.ext.viewcode",
]
exclude_patterns = [
    "build",
    "jupyter_execute",
    "results/README.md",
    "**.ipynb_checkpoints",
]
html_theme = "furo"
html_title = "Allpass"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath", "substitution"]
myst_heading_anchors = 3
# files of the repository that pages include link to its folders, which the site does not have
suppress_warnings = ["myst.xref_missing", "myst.header", "mystnb.unknown_mime_type"]
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_render_image_options = {"width": "100%"}
nb_mime_priority_overrides = [("html", "image/svg+xml", 5)]

default_role = "code"  # names in docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {
    "members": True,
    "show-inheritance": False,
    "exclude-members": "training",
}
napoleon_numpy_docstring = False


def escape_bars(app: Any, what: str, name: str, owner: Any, options: Any, lines: list[str]) -> None:
    """Let |x| in a docstring be an absolute value; docutils takes it for a substitution."""
    is_literal = False
    for i, line in enumerate(lines):
        is_indented = line.startswith("    ")
        is_literal = line.startswith((".. ", ">>>")) or (is_literal and (not line or is_indented))
        if not is_literal:
            parts = re.split(r"(`+[^`]*`+)", line)
            parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
            lines[i] = "".join(parts)


def setup(app: Any) -> None:
    """Connect what changes docstrings."""
    app.connect("autodoc-process-docstring", escape_bars)
