"""What a measurement becomes in the loggers, and which coefficients it has."""

import re
from types import SimpleNamespace

import pytest
import torch
from attention_core import AGF, GFSA, EigenSpectrum, Plain, SelfAttention, diagnose
from attention_core.plots.depth import PROFILE
from experiment_kit.training.spectral_logs import (
    collect_coefficients,
    describe_moves,
    log_measures,
    name_scalars,
)
from experiment_kit.training.spectral_monitor import list_measures
from torch import nn
from torch.utils.tensorboard import SummaryWriter

DIM, HEADS = 8, 2


def measure(*layers: nn.Module) -> dict:
    """The measures of attention layers, one after the other."""
    model = nn.Sequential(*layers)
    report = diagnose(model, torch.randn(3, 7, DIM), mechanisms=[])
    return list_measures(report, full=True) | collect_coefficients(model)


def filtered() -> SelfAttention:
    return SelfAttention(DIM, HEADS, filter=lambda heads: GFSA(heads, wK=0.25))


class RecordingLogger:
    """A Lightning logger that keeps its scalars; `experiment` is the tracker behind it."""

    def __init__(self, experiment=None) -> None:
        self.experiment, self.logged = experiment, []

    def log_metrics(self, metrics, step=None) -> None:
        # MLflow refuses other names
        assert all(re.fullmatch(r"[\w\-./ :]+", key) for key in metrics)
        self.logged.append((step, dict(metrics)))


@pytest.mark.parametrize("singular_values", ["filtered", "generated", "learned", "ones"])
def test_every_ablation_of_agf_is_logged(singular_values: str, tmp_path) -> None:
    kernel = lambda dim, heads: AGF(dim, heads, singular_values=singular_values)  # noqa: E731
    measures = measure(filtered(), SelfAttention(DIM, HEADS, kernel=kernel))
    with SummaryWriter(tmp_path) as board:
        log_measures([RecordingLogger(board)], 1, measures, figures=True)
    has_coefficients = singular_values in ("filtered", "learned")
    assert ("1.kernel.theta" in measures["coefficients"]) == has_coefficients


def test_trained_coefficients_alone_have_scalars_by_layer() -> None:
    coefficients = {"b.0.filter.w0": [0.0, 0.0], "b.2.filter.wK": [1.0, 3.0], "t.tokens.s": [2.0]}
    measures = {"depth": [], "coefficients": coefficients, "frozen": ["b.0.filter.w0"]}
    measures |= {"attention": ["b.0", "b.1", "b.2"], "condition_number": [9.0, None]}
    assert name_scalars(measures) == {
        "y_filter/wK/layer_2/mean": 2.0,
        "y_filter/wK/layer_2/min": 1.0,
        "y_filter/wK/layer_2/max": 3.0,
        "y_filter/s/layer_0/mean": 2.0,
        "y_filter/condition_number/layer_0": 9.0,
    }


def test_a_layer_has_one_number_in_the_tags_of_tokens_and_of_filters() -> None:
    depth = [dict.fromkeys(PROFILE, value) for value in (0.5, 1.0, 2.0)]
    measures = {"depth": depth, "coefficients": {"b.0.filter.wK": [3.0], "b.1.filter.wK": [4.0]}}
    scalars = name_scalars({**measures, "frozen": [], "attention": ["b.0", "b.1"]})
    assert [scalars[f"x_smoothing/hfc_lfc/{place}"] for place in ("embedding", "layer_1")] == [
        0.5,
        2.0,
    ]
    assert scalars["y_filter/wK/layer_1/mean"] == 4.0
    assert "x_smoothing/hfc_lfc/layer_2" not in scalars


def test_custom_scalars_have_every_measure_in_a_chart_in_reading_order() -> None:
    layouts, measures = [], measure(filtered())
    board = SimpleNamespace(add_custom_scalars=layouts.append)
    log_measures([RecordingLogger(board)], 1, measures, figures=False)
    patterns = [chart[1][0] for charts in layouts[0].values() for chart in charts.values()]
    tags = [tag for tag in name_scalars(measures) if not tag.endswith(("/min", "/max"))]
    assert all(sum(re.match(pattern, tag) is not None for pattern in patterns) == 1 for tag in tags)
    groups = {tag.partition("/")[0] for tag in tags}
    assert sorted({"train", "val", *groups}) == ["train", "val", "x_smoothing", "y_filter"]


def test_every_logger_gets_the_scalars_and_each_what_it_can_draw() -> None:
    measures, drawn = measure(filtered()), []
    board = SimpleNamespace(add_histogram=lambda tag, values, step: drawn.append((tag, values)))
    loggers = [RecordingLogger(), RecordingLogger(board), RecordingLogger(object())]
    log_measures(loggers, 3, measures, figures=True)
    assert [logger.logged for logger in loggers] == [[(3, name_scalars(measures))]] * 3
    assert torch.equal(dict(drawn)["y_filter/wK/layer_0"], torch.tensor([0.25, 0.25]))
    assert "y_filter/w0/layer_0" not in dict(drawn)


def test_the_eigenvalues_of_a_spectrum_are_coefficients() -> None:
    model = nn.Sequential(SelfAttention(DIM, HEADS, filter=Plain, reparam=EigenSpectrum))
    psi = collect_coefficients(model)["coefficients"]["0.spectrum.psi"]
    assert len(psi) == DIM
    assert all(-1 <= value <= 0 for value in psi)


def test_the_layer_that_moved_most_is_named() -> None:
    before = {"0.filter.wK": [0.0, 0.0], "1.filter.wK": [0.0, 0.0]}
    now = {"0.filter.wK": [0.1, 0.1], "1.filter.wK": [-0.5, -0.3]}
    measures = {"coefficients": now, "frozen": [], "attention": []}
    assert describe_moves(measures, {"coefficients": before}) == (
        "coefficients: wK is -0.4 to 0.1 by layer, moved most in layer 1 (-0.4)"
    )
