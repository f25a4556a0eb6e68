"""Grids with a cell for each layer and head: spectra, and attention maps as images."""

import math
from collections.abc import Mapping, Sequence

import torch

from attention_core.plots.panels import FULL_WIDTH, Figure, get_line, make_panels

Grid = Sequence[Sequence[Sequence[float]]]  # rows, columns, values
MAX_NAMED = 12  # rows, each with a number, and heads, each with more than its number


def plot_spectra_grid(responses: Grid, width: float = FULL_WIDTH, first: int = 1) -> Figure:
    """Plot the responses (layers, heads, frequencies) of each head, a row for each layer.

    All cells share their axes, so that heads can be compared; gains are logarithmic. `first` is the
    number of the first layer and head: papers count from 1, a diagnosis counts from 0.
    """
    rows, heads = len(responses), max(map(len, responses))
    # axes that share limits by matplotlib take a minute for 144 cells: each tells all others
    figure, axes = make_panels(rows * heads, heads, min(0.7, 9.0 / rows), width, pad=0.015)
    # around all positive gains, with a margin of a twentieth on a log scale
    known = [g for layer in responses for head in layer for g in head if 0 < g < math.inf]
    low, high = min(known, default=1.0), max(known, default=1.0)
    margin = max((high / low) ** 0.05, 1.01)
    for index, axis in enumerate(axes):
        layer, head = divmod(index, heads)
        if head >= len(responses[layer]):
            axis.remove()
            continue
        gains = responses[layer][head]
        x = torch.linspace(0, 1, len(gains), dtype=torch.float64).tolist()
        axis.plot(x, gains, color=get_line(None, [""], "")["color"], linewidth=1)
        axis.set(xlim=(0, 1), yscale="log", ylim=(low / margin, high * margin), xticks=[0, 1])
        axis.tick_params(labelsize=6, length=2)
        axis.minorticks_off()
        axis.label_outer()
        if layer == 0:
            name = str(first + head)
            axis.set_title(f"head {name}" if heads <= MAX_NAMED else name, fontsize=7)
        if head == 0 and (rows <= MAX_NAMED or layer % 2 == 0):
            axis.set_ylabel(str(first + layer), fontsize=7, rotation=0, ha="right", va="center")
    figure.supxlabel("frequency / Nyquist", fontsize=8)
    figure.supylabel("gain, by layer", fontsize=8)
    return figure


def plot_attention_maps(
    methods: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
    pooling: int = 1,
    width: float = FULL_WIDTH,
    labels: tuple[str, str] = ("key token", "query token"),
) -> Figure:
    """Plot maps as images, a row for each method and a column for each of its titles.

    `pooling` takes the maximum of squares of so many tokens. Every map has its own scale, from 0
    to its maximum.
    """
    across = max(map(len, methods.values()))
    cell = width / across
    figure, axes = make_panels(len(methods) * across, across, cell + 0.15, width, pad=0.03)
    has_own_titles = len({tuple(maps) for maps in methods.values()}) > 1
    for row, (method, maps) in enumerate(methods.items()):
        for column in range(across):
            axis = next(axes)
            axis.set(xticks=[], yticks=[])
            axis.grid(False)
            if column >= len(maps):
                axis.remove()
                continue
            title, values = [*maps.items()][column]
            A = torch.as_tensor(values, dtype=torch.float64)[None, None]
            pooled = torch.nn.functional.max_pool2d(A, pooling, ceil_mode=True)[0, 0]
            axis.imshow(pooled.tolist(), cmap="viridis", vmin=min(0.0, float(pooled.min())))
            axis.spines[:].set_visible(False)
            if row == 0 or has_own_titles:
                axis.set_title(title, fontsize=8)
            if column == 0:
                axis.set_ylabel(method)
    figure.supxlabel(labels[0], fontsize=8)
    figure.supylabel(labels[1], fontsize=8)
    return figure
