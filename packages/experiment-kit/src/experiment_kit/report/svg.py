"""A matplotlib figure as text that a page can hold and colour."""

import io
import re
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

# Colours that stand for variables of the style sheet, so that one figure serves light and dark.
INK, GRID = "#010101", "#020202"
SERIES = [f"#0300{i:02x}" for i in range(8)]
DASHES = ["solid", "dashed", "dotted"]  # for matplotlib and for the border of a legend

STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: small, searchable, in the font of the page
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "axes.axisbelow": True,
}


def style(index: int) -> dict[str, Any]:
    """The colour and dash of a method by its place in the table, the same on every figure."""
    return {"color": SERIES[index % len(SERIES)], "linestyle": DASHES[_cycle(index)]}


def swatch(index: int) -> str:
    """The same colour and dash as the style of a legend on the page."""
    return f"border-top: 3px {DASHES[_cycle(index)]} var(--series-{index % len(SERIES)})"


def panels(
    count: int, across: int, height: float, share: bool = False
) -> tuple[Figure, list[Axes]]:
    """Make a figure of `count` panels in rows of `across`, which may share their vertical axis."""
    down = -(-count // across)
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    figure = Figure(figsize=(9.6, height * down), layout=layout)
    axes = figure.subplots(down, across, squeeze=False, sharey=share).ravel().tolist()
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def text(figure: Figure, title: str) -> str:
    """Write the figure as an `<svg>` element that names no address and is the same every time."""
    FigureCanvasSVG(figure)
    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": title, **STYLE}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _inline(buffer.getvalue(), title)


def _cycle(index: int) -> int:
    return index // len(SERIES) % len(DASHES)


def _inline(svg: str, title: str) -> str:
    svg = svg[svg.index("<svg") :]
    # The style would reach the whole page; what it says is in the style sheet.
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (xmlns(:\w+)?|version|width|height)="[^"]*"', "", svg, count=5)
    svg = re.sub(r"<!--.*?-->\n?", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (d|x|y|transform)="[^"]*"', lambda place: _shorter(place[0]), svg)
    # Several figures share a page: keep only the ids that the figure itself refers to.
    svg = re.sub(r' id="([^"]+)"', lambda id_: id_[0] if f"#{id_[1]}" in svg else "", svg)
    names = {INK: "ink", GRID: "grid", **{c: f"series-{i}" for i, c in enumerate(SERIES)}}
    for colour, name in names.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)


def _shorter(place: str) -> str:
    return re.sub(r"\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", place)
