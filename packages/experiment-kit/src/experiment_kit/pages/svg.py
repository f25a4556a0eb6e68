"""Figures of matplotlib as SVG inside a page, in the colors of its theme.

A figure is drawn once. Its colors become the variables of `page.css`, which a dark theme sets
anew; its text becomes that of the page. Panels are separate images, which a narrow page stacks.
"""

import hashlib
import io
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from xml.etree import ElementTree

from attention_core.plots import panels
from markupsafe import Markup, escape
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

SERIES = panels.SERIES["light"]  # figures are drawn in these colors
PANEL_WIDTH = 3.0  # inches, of a figure that is split
MARGIN = 3.0  # points around a panel
MIN_SCALE = 11 / 8  # of a figure that is not split: text of 8 points has 11 pixels
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_VARIABLES = {color: f"var(--series-{i})" for i, color in enumerate(SERIES)} | {
    **dict.fromkeys((panels.INK["light"], "#000000"), "var(--ink)"),
    **{panels.GRID["light"]: "var(--grid)", "#ffffff": "var(--paper)"},
}
_COLOR = re.compile("|".join(_VARIABLES))


@dataclass(frozen=True)
class Panel:
    """An image of a page; one that is wide scrolls, others stand side by side."""

    image: Markup
    is_wide: bool
    is_legend: bool = False  # that of all panels, above them


def draw_panels(draw: Callable[[], Figure], label: str, split: bool = True) -> list[Panel]:
    """Draw a figure and return the images of its panels, each named for screen readers.

    It is one image if it is not split, or has a title of its own or a color bar.
    """
    with panels.use_style("light"):
        figure = draw()
        axes = [axis for axis in figure.axes if axis.get_visible()]
        bars = any(axis.get_label() == "<colorbar>" for axis in axes)
        split = split and bool(axes) and not (bars or figure.texts)
        figure.dpi = 72
        if split:
            _resize_panels(figure, axes)
        root = _render(figure)
        boxes = _find_panel_boxes(axes, figure) if axes else []
        boxes += [_find_box(legend, figure) for legend in figure.legends]
    parts = _split_parts(root, len(boxes)) if split else []
    _remove_unused(root, prefix=hashlib.sha256(ElementTree.tostring(root)).hexdigest()[:8])
    if not split:
        return [Panel(_format_svg([*root], (0.0, 0.0, *_size(root)), label), is_wide=True)]
    names = [axis.get_title(loc="left") or axis.get_title() for axis in axes]
    names += ["legend"] * len(figure.legends)
    found = [
        Panel(_format_svg(part, box, f"{label}: {name}"), is_wide=False, is_legend=i >= len(axes))
        for i, (part, box, name) in enumerate(zip(parts, boxes, names, strict=True))
    ]
    return sorted(found, key=lambda panel: not panel.is_legend)


def _resize_panels(figure: Figure, axes: list[Axes]) -> None:
    """Give all panels one width, and those that share an axis its labels, as each stands alone."""
    specs = [axis.get_subplotspec() for axis in axes]
    figure.set_figwidth(
        PANEL_WIDTH * max(spec.get_gridspec().ncols if spec else 1 for spec in specs)
    )
    for axis in axes:
        axis.tick_params(labelleft=True, labelbottom=True)
        groups = (axis.get_shared_x_axes(), axis.get_shared_y_axes())
        for other in {sibling for group in groups for sibling in group.get_siblings(axis)}:
            axis.set_xlabel(axis.get_xlabel() or other.get_xlabel())
            axis.set_ylabel(axis.get_ylabel() or other.get_ylabel())


def _render(figure: Figure) -> ElementTree.Element:
    buffer = io.BytesIO()
    FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    return ElementTree.fromstring(buffer.getvalue())


def _size(root: ElementTree.Element) -> tuple[float, float]:
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    return width, height


def _find_panel_boxes(axes: list[Axes], figure: Figure) -> list[tuple[float, ...]]:
    """Return a box for each panel, all with the widest margins, so that their axes align."""
    inner = [axis.get_window_extent() for axis in axes]
    outer = [axis.get_tightbbox() or axis.get_window_extent() for axis in axes]
    pairs = [*zip(inner, outer, strict=True)]
    left, right = max(i.x0 - o.x0 for i, o in pairs), max(o.x1 - i.x1 for i, o in pairs)
    below, above = max(i.y0 - o.y0 for i, o in pairs), max(o.y1 - i.y1 for i, o in pairs)
    return [_flip_box(i.x0 - left, i.y0 - below, i.x1 + right, i.y1 + above, figure) for i in inner]


def _find_box(artist: Artist, figure: Figure) -> tuple[float, ...]:
    box = artist.get_tightbbox()
    assert box is not None
    return _flip_box(*box.extents, figure)


def _flip_box(x0: float, y0: float, x1: float, y1: float, figure: Figure) -> tuple[float, ...]:
    """Return left, top, width and height in points, with a margin."""
    left, top = x0 - MARGIN, figure.bbox.height - y1 - MARGIN
    sides = (left, top, x1 - x0 + 2 * MARGIN, y1 - y0 + 2 * MARGIN)
    return tuple(round(float(side), 1) for side in sides)


def _remove_unused(root: ElementTree.Element, prefix: str) -> None:
    """Remove what is of no use inside a page, and make ids unique on it."""
    for element in root.findall(f"{_SVG}metadata"):
        root.remove(element)
    for element in root.iter(f"{_SVG}defs"):  # a style here would be that of the whole page
        for style in element.findall(f"{_SVG}style"):
            element.remove(style)
    for element in root.iter():
        name = element.attrib.pop("id", "")
        if name and element.tag != f"{_SVG}g":
            element.attrib["id"] = f"{prefix}-{name}"
        if target := element.attrib.pop(_LINK, ""):
            element.attrib["href"] = re.sub("^#", f"#{prefix}-", target)
        for name in {"clip-path", "fill", "style"} & element.attrib.keys():
            element.attrib[name] = _convert_style(element.attrib[name], prefix)
        if "d" in element.attrib:
            element.attrib["d"] = shorten_path(element.attrib["d"])


def _convert_style(value: str, prefix: str) -> str:
    """Return an attribute with the variables, ids and fonts of the page."""
    value = value.replace("url(#", f"url(#{prefix}-")
    value = re.sub(r"font(?:-family|: (\S+px)) ?[^;]*;? ?", _keep_size, value)
    return _COLOR.sub(lambda found: _VARIABLES[found[0]], value)


def shorten_path(path: str) -> str:
    """Return a path in tenths of a point, without the commands that a line implies.

    >>> shorten_path("M 10.123456 2 L 3.96 4.04 L 5.5 6 z ")
    'M10.1 2 4 4 5.5 6z'
    """
    path = re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), path)
    path = path if re.search("[CQ]", path) else path.replace("L", " ")
    return re.sub(r" ?([A-Za-z]) ?", r"\1", " ".join(path.split()))


def _keep_size(font: re.Match[str]) -> str:
    return f"font-size: {font[1]}; " if font[1] else ""


def _split_parts(root: ElementTree.Element, count: int) -> list[list[ElementTree.Element]]:
    """Return the elements of each panel, then of each legend; the first has all definitions."""
    (figure,) = root.findall(f"{_SVG}g")
    shared = root.findall(f"{_SVG}defs")
    groups = [g for g in figure if re.match("axes_|legend_", g.attrib.get("id", ""))]
    return [[*(shared if i == 0 else []), group] for i, group in enumerate(groups[:count])]


def _format_svg(elements: list[ElementTree.Element], box: tuple[float, ...], label: str) -> Markup:
    inner = "".join(ElementTree.tostring(element, encoding="unicode") for element in elements)
    inner = re.sub(r' xmlns:\w+="[^"]*"', "", inner)
    inner = re.sub(r"(</?)ns\d+:", r"\1", inner)
    inner = re.sub(r">\s+<", "><", inner).replace("\n", " ")
    view = " ".join(f"{side:g}" for side in box)
    style = f"--width: {math.ceil(box[2] * MIN_SCALE) + 1}px"
    return Markup('<svg viewBox="{}" style="{}" role="img" aria-label="{}">{}</svg>').format(
        view, style, escape(label), Markup(inner)
    )
