"""Panels, colors and files of figures."""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:  # imported with the first figure
    Axes = Figure = Any

Lines = Mapping[str, Mapping[str, Any]]

FULL_WIDTH = 7.0  # inches, of a page; a column has 3.4
NARROW_PANEL = 2.0  # inches, below which the labels of a panel cannot be read
DASHES = ("solid", "dashed", "dotted")
INK = {"light": "#1c1c1a", "dark": "#ecebe6"}
GRID = {"light": "#d6d5cf", "dark": "#45443f"}
BACKGROUND = {"light": "white", "dark": "#1a1a19"}
_LIGHT = "#2a78d6 #d9480f #12876a #b07d00 #9a3fb5 #c2255c #5f7d1e #5c5f66"
_DARK = "#6cb0ff #ff9a5c #3fc9a0 #f0c24b #d79bf0 #ff85ab #b3d35c #b4b7bf"
SERIES = {"light": _LIGHT.split(" "), "dark": _DARK.split(" ")}  # told apart without color vision
FORMATS = ("svg", "png", "pdf")


def use_style(theme: str = "light") -> AbstractContextManager[None]:
    """Draw in the ink, grid and series colors of a theme, `light` or `dark`, inside a `with`."""
    if theme not in INK:
        raise ValueError(f"theme must be one of {', '.join(INK)}, got {theme!r}")
    mpl = _import_matplotlib()
    ink = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.labelcolor")
    grid = ("axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
    context: AbstractContextManager[None] = mpl.rc_context({
        **dict.fromkeys((*ink, "ytick.labelcolor"), INK[theme]),
        **dict.fromkeys(grid, GRID[theme]),
        **dict.fromkeys(("font.size", "axes.titlesize"), 9),
        **dict.fromkeys(("axes.labelsize", "xtick.labelsize", "ytick.labelsize"), 8),
        **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
        **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
        **dict.fromkeys(("grid.linewidth", "axes.linewidth"), 0.6),
        "axes.prop_cycle": mpl.cycler(color=SERIES[theme]),
        "axes.grid.axis": "y",
        "axes.titlelocation": "left",
        "legend.fontsize": 8,
        "legend.frameon": False,
        "lines.linewidth": 1.6,
        "svg.fonttype": "none",  # text stays text: small, and in a font of the reader
        "svg.hashsalt": "allpass",  # the same figure has the same bytes
    })  # fmt: skip
    return context


def render_figure(draw: Callable[[], Figure], format: str = "svg", theme: str = "light") -> bytes:
    """Draw a figure in a theme and return its file, the same bytes each time.

    An SVG has no background of its own, a PNG that of its theme.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    dates = {"svg": "Date", "pdf": "CreationDate"}
    buffer = io.BytesIO()
    with use_style(theme):
        figure = draw()
        figure.set_facecolor(BACKGROUND[theme] if format == "png" else "none")
        metadata = {dates[format]: None} if format in dates else None
        figure.savefig(
            buffer, format=format, dpi=200, metadata=metadata, facecolor=figure.get_facecolor()
        )
    return buffer.getvalue()


def make_panels(
    count: int,
    across: int | None = None,
    height: float = 2.4,
    width: float = FULL_WIDTH,
    pad: float = 0.06,
    **options: Any,
) -> tuple[Figure, Iterator[Axes]]:
    """Return a figure of inches and its panels, as many beside each other as can be read.

    Without `across`, panels narrower than two inches go into the next row. `pad` is in inches,
    around a panel; `options` are those of `Figure.subplots`.
    """
    _import_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    if across is None:
        rows = -(-count // max(1, int(width / NARROW_PANEL)))
        across = -(-count // rows)
    down = -(-count // across)
    layout = ConstrainedLayoutEngine(w_pad=pad, h_pad=pad)
    figure = Figure(figsize=(width, height * down), layout=layout, facecolor="none")
    axes = figure.subplots(down, across, squeeze=False, **options).ravel().tolist()
    for axis in axes:
        axis.set_facecolor("none")
    for spare in axes[count:]:
        spare.remove()
    return figure, iter(axes[:count])


def get_line(lines: Lines | None, labels: Sequence[str], label: str) -> dict[str, Any]:
    """Return the style of a label's line: that of the caller, or a color and dash by its place."""
    if lines:
        return {**lines[label]}
    index = labels.index(label)
    return {"color": f"C{index}", "linestyle": DASHES[index // 8 % len(DASHES)]}


def add_legend(figure: Figure, labels: Iterable[str] | None = None) -> None:
    """Name the lines of all panels once, above them, where there are several lines."""
    entries: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    names = [label for label in labels or entries if label in entries]
    if len(names) < 2:
        return
    inches = max(1.6, 0.5 + 0.07 * max(map(len, names)))
    rows = -(-len(names) // max(1, int(figure.get_figwidth() / inches)))
    columns = -(-len(names) // rows)
    handles = [entries[label] for label in names]
    figure.legend(handles, names, loc="outside upper left", ncols=columns, handlelength=1.8)


def show_integers(axis: Axes, label: str) -> None:
    """Label the horizontal axis, which counts: its ticks are integers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_xlabel(label)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def use_log_scale(axis: Axes) -> None:
    """Set a logarithmic vertical axis where what is drawn spans more than a factor of three."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.dataLim.intervaly
    if not (low > 0 or high > 0) or 0 < high < 3 * low:
        return
    axis.set_yscale("log")
    is_short = high < 30 * low  # under one and a half decades
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if is_short else (1,), numticks=7))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _import_matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'attention-core[plot]'") from error
    return matplotlib
