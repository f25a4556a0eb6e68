"""A finished run is verified from its checkpoint; what was edited is named."""

import json
import shutil

import pytest
import torch
from experiment_kit.cli import run_app
from experiment_kit.commands.verify import verify_run
from experiment_kit.launch.plan import Experiment, load_app

from tests.apps.tiny import NARROW

SHORT = (
    "--trainer.max_steps=2", "--trainer.val_check_interval=1", "--trainer.limit_val_batches=1",
    "--trainer.enable_progress_bar=false",
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    names = {"app": "sequence", "data": "japanese_vowels", "backbone": "uea", "method": "gfsa"}
    experiment = Experiment(**names, profile="smoke", args=(*NARROW, *SHORT))
    folder = tmp_path_factory.mktemp("runs")
    run_app(load_app("sequence"), ["fit", *experiment.arguments(str(folder))])
    (result,) = folder.rglob("result.json")
    return result.parent


@pytest.fixture
def run(finished, tmp_path):
    """A copy of the run in a place of its own."""
    return shutil.copytree(finished, tmp_path / "moved" / finished.name)


def test_a_run_that_was_moved_is_verified_and_nothing_of_it_is_changed(run, capsys) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    verify_run(str(run), tolerance=0.0)
    printed = capsys.readouterr().out
    assert "test/accuracy" in printed
    assert f"verified {run}: 2 metrics" in printed
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_other_weights_are_found(run, read_error) -> None:
    path = run / "checkpoints" / "best.ckpt"
    content = torch.load(path, weights_only=True)
    content["state_dict"] = {
        name: torch.zeros_like(weight) for name, weight in content["state_dict"].items()
    }
    torch.save(content, path)
    error = read_error(verify_run, str(run))
    assert "is not what its checkpoint scores: test/loss" in error


@pytest.mark.parametrize(("name", "old", "new", "sentence"), [
    ("result.json", '"epochs": ', '"epochs": 1', "was changed after the run had written it"),
    ("config.yaml", "seed_everything: 0", "seed_everything: 1", "was changed after the run"),
])  # fmt: skip
def test_edited_files_are_named(run, read_error, name, old, new, sentence) -> None:
    text = (run / name).read_text()
    assert old in text
    (run / name).write_text(text.replace(old, new, 1))
    error = read_error(verify_run, str(run))
    assert f"{run / name}" in error
    assert sentence in error


def test_a_truncated_result_a_missing_checkpoint_and_a_bad_tolerance(run, read_error) -> None:
    assert "--tolerance=-1" in read_error(verify_run, str(run), -1)
    shutil.rmtree(run / "checkpoints")
    assert "is gone" in read_error(verify_run, str(run))
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result)[:40])
    assert "cannot be read" in read_error(verify_run, str(run))
