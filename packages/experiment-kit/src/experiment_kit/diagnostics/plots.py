"""Figures of spectral measures for TensorBoard and pages, drawn without pyplot's global state."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

_TITLES = {
    "hfc_lfc": "high / low frequency",
    "token_cosine": "token cosine",
    "effective_rank": "effective rank",
}


def plot_depth_profile(depth: Sequence[Mapping[str, float]]) -> Figure:
    """Plot smoothness measures of the tokens after the embedding (0) and after each block.

    >>> len(plot_depth_profile([{"hfc_lfc": 1.0, "token_cosine": 0.2, "effective_rank": 9.0}]).axes)
    3
    """
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    for axis, (name, title) in zip(figure.subplots(1, 3), _TITLES.items(), strict=True):
        axis.plot([layer[name] for layer in depth], marker="o")
        axis.set(title=title, xlabel="layer", xticks=range(len(depth)))
        axis.grid(alpha=0.3)
    return figure


def plot_frequency_response(response: Sequence[Sequence[float]]) -> Figure:
    """Plot the response of each layer's map to the frequencies 0 (the mean) to n/2.

    >>> len(plot_frequency_response([[1.0, 0.2, 0.1]]).axes)
    1
    """
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axis = figure.subplots()
    for layer, values in enumerate(response, start=1):
        axis.plot(values, label=f"layer {layer}")
    axis.set(xlabel="frequency", ylabel="response of H", yscale="log")
    axis.grid(alpha=0.3)
    if response:  # a kernel without values has none
        axis.legend()
    return figure
