"""What a measurement becomes in the loggers."""

import re
from types import SimpleNamespace

import pytest
import torch
from attention_core.plots.depth import PROFILE
from experiment_kit.diagnostics.log_measures import log_measures, name_scalars
from experiment_kit.diagnostics.smoothness import measure_spectra
from torch.utils.tensorboard import SummaryWriter

from tests.kit.diagnostics.test_smoothness import TwoLayers, batch


class RecordingLogger:
    """A Lightning logger that keeps its scalars; `experiment` is the tracker behind it."""

    def __init__(self, experiment=None) -> None:
        self.experiment, self.logged = experiment, []

    def log_metrics(self, metrics, step=None) -> None:
        self.logged.append((step, dict(metrics)))


@pytest.mark.parametrize("singular_values", ["filtered", "generated", "learned", "ones"])
def test_every_ablation_of_agf_is_logged(singular_values: str, tmp_path) -> None:
    measures = measure_spectra(TwoLayers(singular_values=singular_values), batch())
    with SummaryWriter(tmp_path) as board:
        log_measures([RecordingLogger(board)], 1, measures, figures=True)
    has_coefficients = singular_values in ("filtered", "learned")
    assert ("second.kernel.theta" in measures["coefficients"]) == has_coefficients


def test_trained_coefficients_alone_have_scalars_by_layer() -> None:
    coefficients = {"b.0.filter.w0": [0.0, 0.0], "b.2.filter.wK": [1.0, 3.0], "t.tokens.s": [2.0]}
    measures = {"depth": [], "coefficients": coefficients, "frozen": ["b.0.filter.w0"]}
    measures |= {"attention": ["b.0", "b.1", "b.2"], "condition_number": [9.0]}
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
    assert scalars["x_smoothing/hfc_lfc/embedding"] == 0.5
    assert scalars["x_smoothing/hfc_lfc/layer_0"] == 1.0
    assert scalars["x_smoothing/hfc_lfc/layer_1"] == 2.0
    assert scalars["y_filter/wK/layer_1/mean"] == 4.0
    assert "x_smoothing/hfc_lfc/layer_2" not in scalars


def test_custom_scalars_have_every_measure_of_tokens_in_a_chart() -> None:
    layouts, measures = [], measure_spectra(TwoLayers(), batch())
    board = SimpleNamespace(add_custom_scalars=layouts.append)
    log_measures([RecordingLogger(board)], 1, measures, figures=False)
    patterns = [chart[1][0] for charts in layouts[0].values() for chart in charts.values()]
    tags = [tag for tag in name_scalars(measures) if not tag.endswith(("/min", "/max"))]
    assert "x_smoothing/hfc_lfc/embedding" in tags
    assert all(sum(re.match(pattern, tag) is not None for pattern in patterns) == 1 for tag in tags)


def test_groups_are_in_reading_order() -> None:
    measures = measure_spectra(TwoLayers(), batch())
    groups = {tag.partition("/")[0] for tag in name_scalars(measures)}
    assert sorted({"train", "val", "z_run", *groups}) == [
        *("train", "val", "x_smoothing", "y_filter", "z_run")
    ]


def test_every_logger_gets_the_scalars_and_each_what_it_can_draw() -> None:
    measures, drawn = measure_spectra(TwoLayers(), batch()), []
    board = SimpleNamespace(add_histogram=lambda tag, values, step: drawn.append((tag, values)))
    loggers = [RecordingLogger(), RecordingLogger(board), RecordingLogger(object())]
    log_measures(loggers, 3, measures, figures=True)
    assert [logger.logged for logger in loggers] == [[(3, name_scalars(measures))]] * 3
    assert torch.equal(dict(drawn)["y_filter/wK/layer_0"], torch.tensor([0.25, 0.25]))
    assert "y_filter/w0/layer_0" not in dict(drawn)


class FakeRun:
    """The run of W&B behind its logger: it has neither histograms nor figures of TensorBoard."""

    def __init__(self) -> None:
        self.logged: list[dict[str, float]] = []

    def log(self, metrics) -> None:
        self.logged.append(metrics)


class FakeClient:
    """The client of MLflow behind its logger; it refuses the names that MLflow refuses."""

    def __init__(self) -> None:
        self.logged: list[tuple[str, str, float, int]] = []

    def log_metric(self, run_id, key, value, step) -> None:
        assert re.fullmatch(r"[\w\-./ :]+", key)
        self.logged.append((run_id, key, value, step))


class FakeWandbLogger(RecordingLogger):
    def log_metrics(self, metrics, step=None) -> None:
        self.experiment.log({**metrics, "trainer/global_step": step})


class FakeMLFlowLogger(RecordingLogger):
    def log_metrics(self, metrics, step=None) -> None:
        for key, value in metrics.items():
            self.experiment.log_metric("1", key, value, step)


def test_trackers_other_than_tensorboard_get_every_scalar() -> None:
    """Their packages are not installed here: these classes have the calls that Lightning makes."""
    measures, run, client = measure_spectra(TwoLayers(), batch()), FakeRun(), FakeClient()
    log_measures([FakeWandbLogger(run), FakeMLFlowLogger(client)], 7, measures, figures=True)
    scalars = name_scalars(measures)
    assert run.logged == [{**scalars, "trainer/global_step": 7}]
    assert client.logged == [("1", key, value, 7) for key, value in scalars.items()]
