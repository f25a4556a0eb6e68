"""The command line: results, resuming from the checkpoint before a damaged one, user errors."""

import shutil
import time
from unittest.mock import Mock

import psutil
import pytest
import torch
import yaml
from attention_sequence import APP
from attention_sequence.models import SeriesClassifier
from experiment_kit.app_cli import AppCLI
from experiment_kit.cli import execute_subcommand, run_app
from experiment_kit.run import Run

from tests.apps.contract import find_run
from tests.apps.tiny import arguments, fit
from tests.processes import start_python

pytestmark = pytest.mark.timeout(300)  # processes of their own, on machines of two slow cores
LONG = ("--trainer.max_epochs=3", "--trainer.limit_train_batches=13")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Run:
    return fit(tmp_path_factory.mktemp("whole"), *LONG, method="gfsa")


def test_a_run_ends_with_a_result_that_says_what_it_is(finished: Run) -> None:
    result = finished.read_result()
    assert result is not None
    names = {"app": "sequence", "data": "japanese_vowels", "method": "gfsa"}
    names |= {"protocol": "validation", "profile": "smoke", "epochs": 3}
    assert names.items() <= result.items()
    assert result["hash"] in finished.folder.name
    assert result["environment"].keys() == {"python", "versions", "commit", "modified"}
    assert 0 <= result["metrics"]["test/accuracy"] <= 1
    assert 0 < result["metrics"]["time/epoch"] < result["seconds"]
    assert "weights_source" not in result
    names = {path.name for path in finished.folder.iterdir()}
    assert {"config.yaml", "environment.yaml", "checkpoints", "result.json"} <= names
    kept = sorted(path.name for path in finished.checkpoint_folder.iterdir())
    assert kept == ["best.ckpt", "step=26.ckpt", "step=39.ckpt"]


def scores(run: Run) -> dict[str, float]:
    """What does not depend on the clock."""
    metrics = run.read_result()["metrics"]
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


def test_a_run_goes_on_from_the_epoch_before_a_damaged_one(finished: Run, tmp_path, capsys) -> None:
    """And ends as if it had not been interrupted."""
    shutil.copytree(finished.folder.parents[3], tmp_path, dirs_exist_ok=True)
    broken = find_run(tmp_path)
    (broken.folder / "result.json").unlink()
    newest = broken.checkpoint_folder / "step=39.ckpt"
    newest.write_bytes(newest.read_bytes()[:1000])
    run = fit(tmp_path, *LONG, method="gfsa")
    printed = capsys.readouterr()
    assert f"resuming {run.folder} from step 26" in printed.out
    assert "is damaged or holds nan; renamed" in printed.err
    assert scores(run) == scores(finished)
    assert run.read_result()["best_epoch"] == finished.read_result()["best_epoch"]
    assert len(yaml.safe_load((run.folder / "environment.yaml").read_text())) == 2
    mine, theirs = (
        torch.load(r.checkpoint_folder / "step=39.ckpt", weights_only=True)["state_dict"]
        for r in (run, finished)
    )
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_a_checkpoint_does_not_override_the_config(finished: Run, tmp_path) -> None:
    best = finished.checkpoint_folder / "best.ckpt"
    other = ("--model.filter.K=9", f"--ckpt_path={best}")
    trainer = execute_subcommand(AppCLI(APP, ["test", *arguments(tmp_path, *other, method="gfsa")]))
    assert [x.attention.filter.K for x in trainer.lightning_module.model.blocks] == [9, 9]


OPTIMIZER, SCHEDULE = "model.optimizer.init_args", "experiment_kit.training.optim"
CALLBACKS = "lightning.pytorch.callbacks"


@pytest.mark.parametrize(("extra", "sentence"), [
    ("--model.filter.K=0", "GFSA.K must be a whole number"),
    ("--model.kernel=attention_core.GFSA", "kernel got GFSA, which is of another kind: pass fil"),
    ("--model.filter.K=1.5", "model.filter.K: Expected a <class 'int'>. Got value: 1.5"),
    ("--data.init_args.protocol=tests", "data.protocol: Expected validation or "),
    ("--ckpt_path=/nowhere.ckpt", "ckpt_path /nowhere.ckpt is not a whole checkpoint"),
    ("--run.method=a/b", "run.method must be letters, digits, _ . -, got 'a/b'"),
    ("--model.filter=timm.create_model", "timm.models._factory.create_model is no class; name a"),
    ("--data.init_args.dataset_name=null", "data: the following arguments are required: data"),
    (f"--{OPTIMIZER}.lr=0", "model.optimizer.lr must be above 0 and finite, got 0.0"),
    ("--model.optimizer=torch.optim.LBFGS", "model.optimizer: LBFGS"),
    (f"--model.schedule={SCHEDULE}.Schedule", "model.schedule: Schedule must define"),
    (f"--model.schedule={{class_path: {SCHEDULE}.OneCycleSchedule, "
     "init_args: {start_divisor: -1}}", "model.schedule.start_divisor must be"),
    ("--trainer.val_check_interval=1000", "`val_check_interval` (1000) must be less than"),
    ("--trainer.limit_train_batches=0", "limit_train_batches must be above 0, got 0"),
    ("--trainer.max_epochs=-1", "set max_steps above 0, or max_epochs where the data has a"),
    ("--checkpoint.every_n_steps=-1", "checkpoint.every_n_steps: "),
    (f"--trainer.callbacks=[{{class_path: {CALLBACKS}.EarlyStopping, "
     "init_args: {monitor: none}}]", "trainer.callbacks: Early stopping conditioned on metric"),
    ("--run.folder=/proc/x", "cannot use /proc/x: No such file or directory"),
    ("--seed_everything=true", "seed_everything: Expected a <class 'int'>"),
])  # fmt: skip
def test_a_mistake_is_one_sentence_and_status_2(extra, sentence, tmp_path, read_error) -> None:
    options = () if "max_epochs" in extra else ("--trainer.max_epochs=1",)
    assert sentence in read_error(fit, tmp_path, *options, extra, method="gfsa")


@pytest.mark.parametrize("error", [
    MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    torch.OutOfMemoryError("CUDA out of memory"),
])  # fmt: skip
def test_too_little_memory_is_a_sentence(error, tmp_path, monkeypatch, read_error) -> None:
    monkeypatch.setattr(SeriesClassifier, "__init__", Mock(side_effect=error))
    assert "the memory does not suffice" in read_error(fit, tmp_path)


@pytest.mark.parametrize(("content", "sentence"), [
    (b"a: [1", "line 2"),
    (b"m: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
    (b"model: {dim: many}", "model.dim: Expected a <class 'int'>. Got value: many"),
])  # fmt: skip
def test_a_bad_config_is_a_sentence_with_its_file(content, sentence, tmp_path, read_error) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_bytes(content)
    error = read_error(run_app, APP, ["fit", *arguments(tmp_path), "-c", str(bad)])
    assert error.startswith(f"error: {bad}")
    assert sentence in error


def test_the_checkpoint_of_another_model_is_refused(finished: Run, tmp_path, read_error) -> None:
    last, best = (finished.checkpoint_folder / f"{name}.ckpt" for name in ("step=39", "best"))
    again = finished.folder.parents[3], *LONG, f"--ckpt_path={tmp_path}/none.ckpt"
    assert "none.ckpt is not a whole checkpoint" in read_error(fit, *again, method="gfsa")
    error = read_error(fit, tmp_path, f"--ckpt_path={last}", method="agf")
    assert f"{last} is of another model" in error
    error = read_error(fit, tmp_path, f"--ckpt_path={best}", method="gfsa")
    assert f"{best} is not a whole checkpoint, with more than weights: give a step=N" in error


DDP = ("--trainer.strategy=ddp", "--trainer.devices=2", "--trainer.max_epochs=500")


def test_a_signal_to_another_rank_stops_all_with_a_checkpoint(tmp_path) -> None:
    """Lightning starts the second process, a new one of Python."""
    command = ["-m", "attention_sequence", "fit", *arguments(tmp_path, *DDP)]
    with start_python(command, tmp_path / "log") as process:
        until = time.monotonic() + 180
        while not any(tmp_path.rglob("step=*.ckpt")):
            assert process.is_alive(), (tmp_path / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.01)
        psutil.Process(process.pid).children()[0].terminate()
        process.join(60)
        assert process.exitcode == 75
    assert find_run(tmp_path).find_newest_checkpoint() is not None


def test_parsing_builds_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(SeriesClassifier, "__init__", lambda *_, **__: pytest.fail("built"))
    assert AppCLI(APP, ["fit", *arguments(tmp_path)]).run.folder.is_relative_to(tmp_path)
    assert not list(tmp_path.iterdir())
