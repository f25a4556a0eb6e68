"""Options of an app: links, the last epoch, the source of its weights, several test loaders."""

import shutil
from functools import partial
from unittest.mock import Mock

import pytest
import torch
import yaml
from experiment_kit import app_cli
from experiment_kit.app_cli import AppCLI
from experiment_kit.cli import execute_subcommand, find_start_checkpoint, run_app
from experiment_kit.pages.records import read_scalars
from experiment_kit.run import Run
from torch.utils.data import DataLoader

from tests.apps.contract import find_run
from tests.kit.tiny import APP, Classifier, Points, arguments

TRUST = "--trust=tests.kit.tiny.Points"


def fit(folder, *extra: str) -> Run:
    settings = ("--model.optimizer.init_args.lr=0.5", "--trainer.max_epochs=2")
    run_app(APP, ["fit", *arguments(folder, *settings, *extra)])
    return find_run(folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Run:
    return fit(tmp_path_factory.mktemp("tiny"), "--model.dim=6", "--data.others=true")


def build_points(kind=Points, **options) -> Points:
    data = kind("points", **options)
    for stage in ("fit", "test"):
        data.setup(stage)
    return data


def compute_test_loss(path, dim: int) -> float:
    model = Classifier(Points.classes, dim)
    model.load_state_dict(torch.load(path, weights_only=True)["state_dict"])
    with torch.no_grad():
        return model.compute_loss(*build_points(dim=dim).splits["test"].tensors).item()


def test_a_linked_argument_is_given_once_and_saved_twice(finished: Run, monkeypatch) -> None:
    monkeypatch.setattr(Points, "classes", torch.tensor(3))  # as labels.max() + 1 is
    config = yaml.safe_load((finished.folder / "config.yaml").read_text())
    assert config["model"]["dim"] == config["data"]["init_args"]["dim"] == 6
    same = ["fit", "-c", str(finished.folder / "config.yaml")]
    assert AppCLI(APP, same).run.folder == finished.folder
    other = AppCLI(APP, [*same, "--model.dim=8"])
    assert other.run.hash != finished.hash
    model, data = other.build_model_and_data()
    assert (model.model[-1].in_features, data.dim) == (8, 8)
    assert build_points().classes == 3


def test_the_last_epoch_is_scored_beside_the_best(finished: Run) -> None:
    metrics, folder = finished.read_result()["metrics"], finished.checkpoint_folder
    best, last = (compute_test_loss(folder / f"{name}.ckpt", 6) for name in ("best", "step=8"))
    assert finished.read_result()["best_epoch"] == 0
    assert abs(best - last) > 1e-3
    assert metrics["test/loss"] == pytest.approx(best, rel=1e-5)
    assert metrics["last/loss"] == pytest.approx(last, rel=1e-5)
    assert metrics["test/other_loss"] == metrics["test/loss"]  # its samples are the same


def test_a_run_without_validation_and_logger_is_scored_where_it_ended(tmp_path) -> None:
    words = "--trainer.logger=false", "--model.weights_source=random"
    run = fit(tmp_path, "--trainer.limit_val_batches=0", *words)
    assert not any(run.folder.rglob("events.out.*"))
    assert run.read_result()["best_epoch"] is None
    assert run.read_result()["weights_source"] == "random"
    ended = compute_test_loss(run.checkpoint_folder / "step=8.ckpt", 4)
    assert run.read_result()["metrics"]["test/loss"] == pytest.approx(ended, rel=1e-5)
    assert run.find_test_checkpoint() == run.checkpoint_folder / "step=8.ckpt"
    run_app(APP, ["predict", "-c", str(run.folder / "config.yaml")])
    assert (run.folder / "predictions.pt").is_file()


@pytest.mark.parametrize("kind", [torch.Generator, type(None)])
def test_a_longer_run_from_a_shorter_one_is_that(kind, tmp_path, monkeypatch, capsys, read_error):
    def draw(data, state=None):  # from a generator of the data's own, which is saved
        own = vars(data).setdefault("own", kind())
        return own.set_state(state["own"]) if own and state else own

    replace, own = partial(monkeypatch.setattr, Points), partial(DataLoader, shuffle=True)
    replace("train_dataloader", lambda data: own(data.splits["train"], 2, generator=draw(data)))
    replace("state_dict", lambda data: {"own": draw(data) and draw(data).get_state()})
    replace("load_state_dict", draw)
    every = "--trainer.log_every_n_steps=1"
    short, once = (fit(tmp_path / n, f"--trainer.max_epochs={n}", every) for n in "13")
    longer = ["fit", str(short.folder), "--trainer.max_epochs=3", TRUST]
    with monkeypatch.context() as patch:  # the disk is full
        patch.setattr(shutil, "copytree", Mock(side_effect=shutil.Error("no space")))
        assert "checkpoints: no space" in read_error(run_app, APP, longer)
    (long,) = {*Run.find_all(tmp_path / "1")} - {short}
    for name in ("checkpoints", ".checkpoints.part"):  # which a killed process leaves
        (long.folder / name).mkdir()
    run_app(APP, longer)
    curves = (read_scalars(run.folder)["train/loss"] for run in (once, long))
    assert next(curves).equals(next(curves))
    assert len([*long.folder.glob("events.*.hparams")]) == 1
    assert f"{long.folder} starts from step 4 of {short.folder}" in capsys.readouterr().out
    one, two = (torch.load(run.checkpoint_folder / "step=12.ckpt")["state_dict"]
                for run in (once, long))  # fmt: skip
    assert all(map(torch.equal, one.values(), two.values()))
    assert (once.hash, once.read_result()["epochs"]) == (long.hash, 3)
    path = short.folder / "config.yaml"
    path.write_text(path.read_text().replace("max_epochs: 1", "max_epochs: 2"))
    run_app(APP, ["fit", str(short.folder), TRUST])
    assert "its config.yaml was edited" in capsys.readouterr().out


def test_a_run_from_a_checkpoint_is_known_by_its_folder(finished, tmp_path, capsys, read_error):
    state, start = torch.load(finished.checkpoint_folder / "step=8.ckpt"), tmp_path / "step=8.ckpt"
    options = state["hyper_parameters"]["optimizer"]["init_args"]
    del options["eps"]  # as an older version
    options["foreach"] = True  # as on a GPU
    torch.save(state, start, _use_new_zipfile_serialization=False)
    more = "--trainer.max_epochs=3", "--model.schedule=CosineSchedule"
    run = fit(tmp_path, "--model.dim=6", *more, f"--ckpt_path={start}")
    error = read_error(fit, tmp_path, "--model.optimizer.lr=0.1", f"--ckpt_path={start}")
    assert "model.optimizer.init_args.lr is 0.1, but ckpt_path" in error
    again = ["fit", str(run.folder), TRUST]
    run_app(APP, again)
    assert f"already finished: {run.folder}" in capsys.readouterr().out
    assert AppCLI(APP, [*again, "--start=null"]).run.hash != run.hash
    (run.folder / "result.json").unlink()
    assert find_start_checkpoint(run, str(start), True) == str(run.find_newest_checkpoint())
    shutil.rmtree(run.checkpoint_folder)
    assert "began from a checkpoint: give --ckpt_path or" in read_error(run_app, APP, again)


def test_a_trial_of_two_batches_leaves_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_app(APP, ["fit", *arguments("runs", "--trainer.fast_dev_run=2")])
    assert not [*tmp_path.iterdir()]


def test_the_last_epoch_is_scored_where_the_process_died_after_training(finished: Run) -> None:
    before = finished.read_result()["metrics"]
    (finished.folder / "result.json").unlink()
    run_app(APP, ["fit", "-c", str(finished.folder / "config.yaml")])
    after = finished.read_result()["metrics"]
    scores = [name for name in before if not name.startswith("time/")]
    assert {name: after[name] for name in scores} == {name: before[name] for name in scores}
    assert after["time/epoch"] == before["time/epoch"]  # measured by the process that trained
    assert after["time/test"] > 0


def test_a_run_is_left_alone_on_changed_data(tmp_path, monkeypatch, capsys, read_error):
    data = tmp_path / "points.txt"
    data.write_text("1")
    monkeypatch.setattr(Points, "list_data_files", lambda _: [data])
    run = fit(tmp_path / "runs")
    with monkeypatch.context() as patch:  # as on a disk that is read-only
        patch.setattr(Run, "lock", lambda _: pytest.fail("locked"))
        fit(tmp_path / "runs")
        assert f"already finished: {run.folder}\n" in capsys.readouterr().out
        data.write_text("2")
        error = read_error(fit, tmp_path / "runs")
    assert f"{run.folder} is finished with other data: points.txt has changed since" in error
    test = ["test", str(run.folder), TRUST]
    assert "points.txt has changed since" in read_error(run_app, APP, test)
    with monkeypatch.context() as patch:  # as other data of a class of the user's own
        patch.setattr(app_cli, "SplitDataModule", AppCLI)
        run_app(APP, [*test, "--data.batch_size=3"])
    (run.folder / "result.json").unlink()
    error = read_error(fit, tmp_path / "runs")
    assert f"{run.folder} began with other data: points.txt has changed since it started" in error
    longer = ["fit", str(run.folder), "--trainer.max_epochs=3", TRUST]
    assert "began with other data: points.txt has changed" in read_error(run_app, APP, longer)


@pytest.mark.parametrize(("words", "metric"), [
    ("-c {}/config.yaml", "test/loss"), (f"{{}} --ckpt_path=best {TRUST}", "test/loss"),
    (f"{{}} --ckpt_path last {TRUST.replace('=', ' ')}", "last/loss"),
])  # fmt: skip
def test_the_best_weights_are_tested_or_those_that_are_named(finished, words, metric) -> None:
    trainer = execute_subcommand(AppCLI(APP, ["test", *words.format(finished.folder).split()]))
    expected = finished.read_result()["metrics"][metric]
    assert trainer.callback_metrics["test/loss"] == pytest.approx(expected)


def test_predictions_are_of_the_test_part(finished: Run, tmp_path, read_error) -> None:
    copy = shutil.copytree(finished.folder, tmp_path / "copies" / finished.folder.name)
    run_app(APP, ["predict", "-c", f"{finished.folder}/config.yaml", "--trainer.devices=2"])
    outputs = torch.load(finished.folder / "predictions.pt", weights_only=True)
    assert [len(batch) for batch in outputs] == [2, 2, 2, 1]
    (tmp_path / "link").symlink_to(copy)
    run_app(APP, ["predict", str(tmp_path / "link"), TRUST])
    assert (copy / "predictions.pt").is_file()
    error = read_error(run_app, APP, ["fit", str(copy), TRUST])
    assert f"{copy} is in no folder of runs: write fit -c {copy}/config.yaml" in error
