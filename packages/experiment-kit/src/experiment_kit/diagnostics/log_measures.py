"""Log measures of over-smoothing: scalars to every logger, histograms and figures to TensorBoard.

TensorBoard and others sort groups of tags by name. The letter in front of a group puts it behind
`train` and `val`, in the order in which they are read.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from attention_core.plots import plot_depth_profiles, plot_frequency_responses
from attention_core.plots.depth import PROFILE
from torch import Tensor

from experiment_kit.diagnostics.coefficients import list_trained

SMOOTHING, FILTER = "x_smoothing", "y_filter"
_WIDTH = 3.4  # inches, of a figure
_STATISTICS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": torch.mean,
    "min": torch.amin,
    "max": torch.amax,
}


def name_scalars(measures: Mapping[str, Any]) -> dict[str, float]:
    """Return the scalars of a measurement by their tags: of tokens, maps and trained coefficients.

    `x_smoothing/<measure>/embedding` and, after block i, `/layer_<i>`;
    `y_filter/<coefficient>/layer_<i>/mean`, `/min` and `/max` over heads or channels, and
    `y_filter/condition_number/layer_<i>`, of the attention in it.
    """
    scalars = {
        f"{SMOOTHING}/{name}/{f'layer_{depth - 1}' if depth else 'embedding'}": layer[name]
        for name in PROFILE
        for depth, layer in enumerate(measures["depth"])
    }
    for name, i, values in list_trained(measures):
        kept = _STATISTICS if len(values) > 1 else {"mean": torch.mean}
        tensor = torch.tensor(values)
        tag = f"{FILTER}/{name}/layer_{i}"
        scalars |= {f"{tag}/{kind}": reduce(tensor).item() for kind, reduce in kept.items()}
    for i, number in enumerate(measures.get("condition_number", [])):
        scalars[f"{FILTER}/condition_number/layer_{i}"] = number
    return scalars


def log_measures(
    loggers: Iterable[Any], step: int, measures: Mapping[str, Any], figures: bool
) -> None:
    """Log a measurement to Lightning's loggers, with figures if asked for."""
    scalars, drawn = name_scalars(measures), None
    for logger in loggers:
        logger.log_metrics(scalars, step)
        board = logger.experiment
        if hasattr(board, "add_custom_scalars") and scalars:
            board.add_custom_scalars(_lay_out(scalars))
        if hasattr(board, "add_histogram"):
            for name, i, values in list_trained(measures):
                board.add_histogram(f"{FILTER}/{name}/layer_{i}", torch.tensor(values), step)
        if figures and hasattr(board, "add_figure"):
            drawn = drawn or _draw_figures(measures)
            for tag, figure in drawn.items():
                board.add_figure(tag, figure, step, close=False)


def _draw_figures(measures: Mapping[str, Any]) -> dict[str, Any]:
    profile = {"": {name: [layer[name] for layer in measures["depth"]] for name in PROFILE}}
    # a figure each: TensorBoard shows images a third of a page wide
    figures = {
        f"{SMOOTHING}/{name}_by_depth": plot_depth_profiles(profile, [name], width=_WIDTH)
        for name in PROFILE
    }
    if measures["response"]:
        responses = plot_frequency_responses({"filters": measures["response"]}, width=_WIDTH)
        figures[f"{FILTER}/frequency_response"] = responses
    for figure in figures.values():
        figure.set_facecolor("white")  # TensorBoard may be dark
    return figures


def _lay_out(scalars: Mapping[str, float]) -> dict[str, dict[str, list[Any]]]:
    """Return a layout of TensorBoard's CUSTOM SCALARS: all layers of a measure in one chart."""
    charts: dict[str, dict[str, list[Any]]] = {"smoothing": {}, "filter": {}}
    for tag in scalars:
        group, name, *_ = tag.split("/")
        pattern = rf"{group}/{name}/(embedding|layer_\d+(/mean)?)$"
        category = "smoothing" if group == SMOOTHING else "filter"
        charts[category][f"{name.replace('_', ' ')} of each layer"] = ["Multiline", [pattern]]
    return {name: found for name, found in charts.items() if found}
