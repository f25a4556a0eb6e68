"""Log measures of over-smoothing: scalars to every logger, histograms and figures to TensorBoard.

TensorBoard and others sort groups of tags by name. The letter in front of a group puts it behind
`train` and `val`, in the order in which they are read.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import mean
from typing import Any

import torch
from attention_core.diagnosis.measure import iterate_coefficients
from attention_core.plots import plot_depth_profiles, plot_frequency_responses
from attention_core.plots.depth import PROFILE
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

Measures = dict[str, Any]
SMOOTHING, FILTER = "x_smoothing", "y_filter"
_WIDTH = 3.4  # inches, of a figure
_STATISTICS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": torch.mean,
    "min": torch.amin,
    "max": torch.amax,
}


def collect_coefficients(model: nn.Module) -> Measures:
    """Return the `coefficients` of every mechanism by name, and the names of those `frozen`.

    Those of averaged copies of the model are left out.
    """
    copies = [f"{name}." for name, m in model.named_modules() if isinstance(m, AveragedModel)]
    found = [x for x in iterate_coefficients(model) if not x[0].startswith((*copies,))]
    values = {name: x.detach().tolist() for name, x, _ in found if x.numel()}
    return {"coefficients": values, "frozen": [name for name, _, trained in found if not trained]}


def list_trained(measures: Mapping[str, Any]) -> Iterator[tuple[str, int, list[float]]]:
    """Yield the name, layer and values of each trained coefficient of a measurement.

    The layer is the index of its attention; coefficients that belong to none, such as those of
    norms, are counted.
    """
    places = {name: i for i, name in enumerate(measures["attention"])}
    counts: dict[str, int] = defaultdict(int)
    for name, values in measures["coefficients"].items():
        if name not in measures["frozen"]:
            owner, _, coefficient = ["", "", *name.rsplit(".", 2)][-3:]
            yield coefficient, places.get(owner, counts[coefficient]), values
            counts[coefficient] += 1


def describe_moves(measures: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """Return the range of each trained coefficient, and the layer where it moved most."""
    trained = list(list_trained(measures))
    if not trained:
        return "coefficients: none is trained"
    before = {(name, i): mean(values) for name, i, values in list_trained({**measures, **first})}
    moved = []
    for kind in dict.fromkeys(name for name, _, _ in trained):
        means = {i: mean(values) for name, i, values in trained if name == kind}
        text = f"{kind} is {min(means.values()):.3g} to {max(means.values()):.3g} by layer"
        moves = {i: value - before.get((kind, i), value) for i, value in means.items()}
        largest = max(moves, key=lambda i: abs(moves[i]))
        moved.append(f"{text}, moved most in layer {largest} ({moves[largest]:+.3g})")
    return f"coefficients: {'; '.join(moved)}"


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
        if number is not None:
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
                if finite := list(filter(math.isfinite, values)):  # else it raises
                    board.add_histogram(f"{FILTER}/{name}/layer_{i}", torch.tensor(finite), step)
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
