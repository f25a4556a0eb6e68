"""Draw what a mechanism does to the tokens of a deep network with random weights.

The pages of the documentation call `show_depth` when they are built.
"""

import io
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import matplotlib as mpl
import torch
from attention_core import SelfAttention
from attention_core.spectral import hfc_share, token_cosine
from matplotlib.figure import Figure
from torch import Tensor, nn

DIM, NUM_HEADS, NUM_TOKENS, DEPTH, BATCH, GAIN = 64, 4, 48, 16, 32, 2.0
# Okabe and Ito's colors, which the color-blind tell apart
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v")

mpl.rcParams["svg.hashsalt"] = "allpass"  # the same code gives the same file


class Block(nn.Module):
    """A residual layer of attention alone, x + attention(norm(x)), its weights drawn by a seed."""

    def __init__(self, seed: int, **slots: Any) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.attention = SelfAttention(DIM, NUM_HEADS, **slots)
        with torch.no_grad():
            self.attention.qkv.weight.mul_(GAIN)  # torch's weights make nearly uniform maps

    def forward(self, x: Tensor) -> Tensor:
        """Add the attention of the normalized tokens."""
        return x + self.attention(nn.functional.layer_norm(x, x.shape[-1:]))


@torch.no_grad()
def measure_depth(
    slots: Mapping[str, Any], set_weights: Callable[[nn.Module], None], measure: Any
) -> list[float]:
    """Measure the tokens behind the input and behind each block, the same network each time."""
    torch.manual_seed(0)
    x, values = torch.randn(BATCH, NUM_TOKENS, DIM), []
    for i in range(DEPTH):
        values.append(measure(x).mean().item())
        block = Block(i, **slots)
        set_weights(block)
        x = block.eval()(x)
    return [*values, measure(x).mean().item()]


def plot_depth(
    cases: Mapping[str, tuple[Mapping[str, Any], Callable[[nn.Module], None]]],
) -> Figure:
    """Plot high frequencies and cosine of the tokens by depth, one line a case."""
    figure = Figure(figsize=(7.2, 2.7), layout="constrained")
    left, right = figure.subplots(1, 2)
    all_cases = {"plain": ({}, lambda block: None), **cases}
    for axis, measure, label in (
        (left, hfc_share, "share of high frequencies"),
        (right, token_cosine, "cosine between tokens"),
    ):
        for (name, (slots, set_weights)), color, marker in zip(
            all_cases.items(), COLORS, MARKERS, strict=False
        ):
            line = measure_depth(slots, set_weights, measure)
            axis.plot(line, color=color, marker=marker, markersize=3, label=name)
        axis.set_xlabel("layer")
        axis.set_ylabel(label)
        axis.set_ylim(0, 1.02)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


class Drawing(NamedTuple):
    """An SVG that a notebook shows."""

    text: str

    def _repr_svg_(self) -> str:
        return self.text


def show_depth(cases: Mapping[str, tuple[Mapping[str, Any], Callable[[nn.Module], None]]]) -> Any:
    """Plot the cases as an SVG that a notebook shows, the same bytes each time."""
    file = io.BytesIO()
    plot_depth(cases).savefig(file, format="svg", metadata={"Date": None})
    return Drawing(file.getvalue().decode())


def set_parameters(**values: float) -> Callable[[nn.Module], None]:
    """Return a function that sets the parameters of these names in a block."""

    def set_weights(block: nn.Module) -> None:
        for path, weight in block.named_parameters():
            if (name := path.rpartition(".")[-1]) in values:
                nn.init.constant_(weight, values[name])

    return set_weights
