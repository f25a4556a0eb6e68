"""The hyperparameters of a run in its loggers."""

from experiment_kit.cli import run_app
from experiment_kit.training.hyperparameters import collect_hyperparameters, log_hyperparameters
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from torch.utils.tensorboard import SummaryWriter

from tests.apps.contract import find_run
from tests.kit.tiny import APP, arguments

CONFIG = {
    "seed_everything": 3,
    "run": {"data": "digits", "backbone": "deit_tiny", "method": "gfsa", "folder": "runs"},
    "trainer": {"max_epochs": 4, "devices": 1},
    "data": {"class_path": "Digits", "init_args": {"batch_size": 32, "num_workers": 2}},
    "model": {
        "filter": {"class_path": "attention_core.GFSA", "init_args": {"K": 5, "learn": ["wK"]}},
        "kernel": None,
        "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.01}},
    },
}


def test_what_a_table_compares_is_collected() -> None:
    assert collect_hyperparameters(CONFIG) == {
        **{"K": 5, "backbone": "deit_tiny", "data": "digits", "lr": 0.01, "method": "gfsa"},
        **{"seed": 3, "train.batch_size": 32, "train.max_epochs": 4},
        **{"model.filter": "GFSA", "model.filter.K": 5, "model.filter.learn": "wK"},
        "model.optimizer": "AdamW",
    }
    assert "K" not in collect_hyperparameters({**CONFIG, "model": {"filter": None}})


class FakeTracker:
    """A logger of Lightning without TensorBoard behind it, as WandbLogger and MLFlowLogger are."""

    experiment = object()

    def __init__(self) -> None:
        self.parameters: dict = {}

    def log_hyperparams(self, params, *args) -> None:
        self.parameters |= params


def test_each_logger_gets_them_in_its_own_way(tmp_path) -> None:
    tracker, board = FakeTracker(), FakeTracker()
    board.experiment = SummaryWriter(tmp_path)
    log_hyperparameters([tracker, board], {"K": 5}, ["val/accuracy"])
    assert (tracker.parameters, board.parameters) == ({"K": 5}, {})
    tags = read_hparams(tmp_path)
    assert tags["_hparams_/session_start_info"].session_start_info.hparams["K"].number_value == 5


def test_a_finished_run_has_an_entry_with_the_metrics_of_its_end(tmp_path) -> None:
    run_app(APP, ["fit", *arguments(tmp_path, "--model.filter=attention_core.GFSA")])
    run = find_run(tmp_path)
    tags = read_hparams(run.folder / "tensorboard")
    chosen = tags["_hparams_/session_start_info"].session_start_info.hparams
    assert (chosen["K"].number_value, chosen["model.filter"].string_value) == (3, "GFSA")
    metrics = tags["_hparams_/experiment"].experiment.metric_infos
    assert [metric.name.tag for metric in metrics] == ["test/loss", "val/accuracy"]


def read_hparams(folder) -> dict:
    events = EventAccumulator(str(folder)).Reload()
    found = events.PluginTagToContent("hparams")
    return {tag: plugin_data_pb2.HParamsPluginData.FromString(c) for tag, c in found.items()}
