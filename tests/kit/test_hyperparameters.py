"""A run in TensorBoard: curves without dots, and an entry in HPARAMS before its result."""

from experiment_kit.cli import run_app
from experiment_kit.run import Run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from tests.apps.contract import find_run
from tests.kit.tiny import APP, arguments


def test_a_run_has_curves_and_its_test_scores_stand_in_hparams(tmp_path, monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(Run, "write_result", lambda run, _: seen.append(read_hparams(run.folder)))
    folder = f"--trainer.logger.save_dir={tmp_path / 'other'}"
    other = "--spectral.every_n_steps=2", "--trainer.logger=CSVLogger", folder
    options = ("--model.filter=attention_core.GFSA", "--trainer.log_every_n_steps=1", *other)
    run_app(APP, ["fit", *arguments(tmp_path, *options)])
    (tags,) = seen  # a finished run is never started again
    chosen = tags["_hparams_/session_start_info"].session_start_info.hparams
    assert (chosen["K"].number_value, chosen["model.filter"].string_value) == (3, "GFSA")
    assert chosen["test/loss"].number_value > 0
    assert chosen["data"].string_value.startswith("points")
    metrics = tags["_hparams_/experiment"].experiment.metric_infos
    assert [metric.name.tag for metric in metrics] == ["val/accuracy"]
    folder = find_run(tmp_path).folder
    shown = EventAccumulator(str(folder)).Reload().Tags()["scalars"]
    assert {"train/loss", "train/lr", "val/accuracy"} < {*shown}
    assert {tag.partition("/")[0] for tag in shown} == {"train", "val", "weights"}
    assert not (folder / "hparams.yaml").exists()
    run_app(APP, ["test", "-c", f"{folder}/config.yaml"])  # which leaves the logs of training alone
    (path,) = (tmp_path / "other").rglob("metrics.csv")  # any other logger has the same names
    assert {*path.read_text().splitlines()[0].split(",")} > {*shown}


def read_hparams(folder) -> dict:
    found = EventAccumulator(str(folder)).Reload().PluginTagToContent("hparams")
    return {tag: plugin_data_pb2.HParamsPluginData.FromString(c) for tag, c in found.items()}
