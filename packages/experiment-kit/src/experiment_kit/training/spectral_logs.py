"""Log measures of over-smoothing: scalars to every logger, figures to TensorBoard.

TensorBoard sorts charts by name, and opens the first two groups: `train`, and `val`, which has
`val/smoothing`. The coefficients of mechanisms, in `weights`, come last.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any

from attention_core.diagnosis.measure import iterate_coefficients
from attention_core.plots import plot_depth_profiles, plot_frequency_responses
from attention_core.plots.depth import PROFILE
from torch import nn
from torch.optim.swa_utils import AveragedModel

from experiment_kit.run import Run

Measures = dict[str, Any]
_WIDTH = 3.4  # inches, of a figure
_COMPARED = 6  # runs in a figure


def collect_coefficients(model: nn.Module) -> Measures:
    """Return the `coefficients` of every mechanism but in averaged copies, and those `frozen`."""
    copies = [f"{name}." for name, m in model.named_modules() if isinstance(m, AveragedModel)]
    found = [x for x in iterate_coefficients(model) if not x[0].startswith((*copies,))]
    values = {name: x.detach().tolist() for name, x, _ in found if x.numel()}
    return {"coefficients": values, "frozen": [name for name, _, trained in found if not trained]}


def list_trained(measures: Mapping[str, Any]) -> Iterator[tuple[str, list[float]]]:
    """Yield tag and values of each trained coefficient; outside of attention, they are numbered."""
    places = {name: i for i, name in enumerate(measures["attention"])}
    counts: dict[str, int] = defaultdict(int)
    for name, values in measures["coefficients"].items():
        if name not in measures["frozen"]:
            owner, _, coefficient = ["", "", *name.rsplit(".", 2)][-3:]
            layer = places.get(owner, counts[coefficient])
            yield f"weights/{coefficient}/layer_{layer:02}", values
            counts[coefficient] += 1


def describe_coefficients(measures: Mapping[str, Any]) -> str:
    """Return the range over layers of each trained coefficient."""
    means: dict[str, list[float]] = defaultdict(list)
    for tag, values in list_trained(measures):
        means[tag.split("/")[1]].append(mean(values))
    ranges = [f"{kind} is {min(x):.3g} to {max(x):.3g} by layer" for kind, x in means.items()]
    return f"coefficients: {'; '.join(ranges) or 'none is trained'}"


def name_scalars(measures: Mapping[str, Any]) -> dict[str, float]:
    """Return the scalars of a measurement by their tags.

    `val/smoothing/<measure>/embedding`, and `layer_<i>` after the middle and the last block, as
    figures show all; `weights/<coefficient>/layer_<i>`, the mean over heads or channels.
    """
    count = len(measures["depth"])
    scalars = {
        f"val/smoothing/{name}/{f'layer_{depth - 1:02}' if depth else 'embedding'}": layer[name]
        for name in PROFILE
        for depth, layer in enumerate(measures["depth"])
        if depth in (0, count // 2, count - 1)
    }
    return scalars | {tag: mean(values) for tag, values in list_trained(measures)}


def draw_measures(loggers: Iterable[Any], step: int, measures: Measures, folder: Path) -> None:
    """Draw a measurement of the run in a folder for the loggers that take figures."""
    drawn = None
    for logger in loggers:
        if hasattr(board := logger.experiment, "add_figure"):
            drawn = drawn or _draw_figures(find_compared(folder, measures))
            for tag, figure in drawn.items():
                board.add_figure(tag, figure, step, close=False)


def find_compared(folder: Path, measures: Measures) -> dict[str, Measures]:
    """Return the measures of this run, and the newest ones of other methods beside it, by name."""
    if (own := Run.parse(folder)) is None:
        return {"": measures}
    found = {own.method: measures}
    for path in sorted(folder.parent.parent.glob("*/seed-*/spectral.json")):
        with suppress(OSError, ValueError):  # another process may be writing it
            found.setdefault(path.parent.parent.name, json.loads(path.read_text("utf-8")))
    return dict([*found.items()][:_COMPARED])


def _draw_figures(runs: Mapping[str, Measures]) -> dict[str, Any]:
    profiles = {
        label: {name: [layer[name] for layer in measures["depth"]] for name in PROFILE}
        for label, measures in runs.items()
    }
    # a figure each: TensorBoard shows images a third of a page wide, and these first
    figures = {
        f"val/smoothing_by_depth/{name}": plot_depth_profiles(profiles, [name], width=_WIDTH)
        for name in PROFILE
    }
    method, own = next(iter(runs.items()))
    if own["response"]:
        responses = plot_frequency_responses({method: own["response"]}, width=_WIDTH)
        figures["weights/frequency_response"] = responses
    for figure in figures.values():
        figure.set_facecolor("white")  # TensorBoard may be dark
    return figures
