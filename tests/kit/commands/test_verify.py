"""A finished run is verified from its checkpoint; what was edited is named."""

import json
import math
import os
import shutil
import sys
from argparse import ArgumentError
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from experiment_kit.__main__ import main
from experiment_kit.cli import run_app
from experiment_kit.commands.predict import predict_files
from experiment_kit.commands.verify import verify_run
from experiment_kit.errors import UserError
from experiment_kit.launch.plan import Experiment, find_data, load_app, load_best_epoch, read_run
from experiment_kit.run import Run
from experiment_kit.run_files import compute_digest

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
    return shutil.copytree(finished, tmp_path.joinpath("moved", *finished.parts[-4:]))


def test_a_run_that_was_moved_is_verified_and_nothing_of_it_is_changed(run, capsys) -> None:
    result = json.loads((run / "result.json").read_text())
    result["metrics"] |= {"test/rtf": 1.0, "test/other_rtf": 1.0}  # times differ
    (run / "result.json").write_text(json.dumps(result | {"digest": compute_digest(result)}))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    verify_run(str(run))
    printed = capsys.readouterr().out
    assert "test/accuracy" in printed
    assert f"verified {run}: 2 metrics" in printed
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.fixture
def strangers_run(run, stranger):
    """A run whose config names a class beside it, under the hash and the digest that belong."""
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("attention_core.GFSA", stranger.name))
    mapping = read_run(run)
    result = json.loads((run / "result.json").read_text())
    result["hash"] = load_app("sequence").find_run(mapping).hash
    result["digest"] = compute_digest(result)
    (run / "result.json").write_text(json.dumps(result))
    return run.rename(run.with_name(f"seed-0-{result['hash']}"))


@pytest.mark.usefixtures("unsaved")
@pytest.mark.parametrize("command", [
    "verify {run}",
    "predict {run} {data}",
    "diagnose run:{run} --samples=1",
    "disagreements {run} {run}",
    "figure gfsa-2 --model=run:{run}",
    "test {run}",
    "fit {run} --trainer.max_steps=3",
])  # fmt: skip
def test_a_class_is_trusted(command, strangers_run, stranger, read_error, monkeypatch) -> None:
    folder = find_data("sequence", "japanese_vowels")
    words = ["allpass", *command.format(run=strangers_run, data=folder).split()]
    start = partial(run_app, load_app("sequence")) if words[1] in ("test", "fit") else main
    monkeypatch.setattr(sys, "argv", words)
    error = read_error(start)
    assert f"config.yaml names {stranger.name}, which is no class of this project" in error
    assert f"allow it by --trust={stranger.name}" in error
    assert not stranger.has_run
    monkeypatch.setattr(sys, "argv", [*words, f"--trust={stranger.name}"])
    start()
    assert stranger.has_run


class Payload:
    """A pickle that makes a folder where it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def test_a_checkpoint_runs_no_code_and_a_resumed_run_leaves_it_out(run, read_error, capsys) -> None:
    marker, config = run / "RAN-CODE", str(run / "config.yaml")
    for path in (run / "checkpoints").iterdir():
        torch.save({"state_dict": Payload(marker)}, path)
    assert "best.ckpt" in read_error(verify_run, str(run))
    assert "is not a whole checkpoint" in read_error(
        run_app, load_app("sequence"), ["test", "-c", config, f"--ckpt_path={path}"]
    )
    (run / "result.json").unlink()
    assert Run(run).find_newest_checkpoint() is None
    assert "renamed to step=" in capsys.readouterr().err
    assert not marker.exists()


def test_trust_ends_with_the_command_and_names_classes(strangers_run, stranger, read_error) -> None:
    verify_run(str(strangers_run), trust=[stranger.name])
    sys.modules.pop("strangers_module")
    stranger.marker.unlink()
    assert stranger.name in read_error(verify_run, str(strangers_run))
    assert not stranger.has_run
    error = read_error(verify_run, str(strangers_run), trust="json")
    assert f"--trust=json is no class that is found from {Path.cwd()}" in error


@pytest.mark.parametrize("path", [
    "attention_core.hosts.saving.import_module", "attention_evil.X",
    "{class_path: strangers_module.X}", "strangers_module.X",
])  # fmt: skip
@pytest.mark.parametrize("key", ["model.filter", "trainer.callbacks", "data", "model_class"])
def test_no_place_of_a_config_names_a_class_of_a_stranger(path, key, run, stranger) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    *groups, last = key.split(".")
    holder = config[groups[0]] if groups else config
    holder[last] = [path] if key == "trainer.callbacks" else path
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises((UserError, ArgumentError)):
        load_best_epoch(run)
    assert not stranger.has_run


def set_weights(run, weights) -> Path:
    """Replace weights of the best checkpoint, and return its path."""
    path = run / "checkpoints/best.ckpt"
    content = torch.load(path, weights_only=True)
    content["state_dict"] = weights(content["state_dict"])
    torch.save(content, path)
    return path


@pytest.mark.parametrize("out", ["{file}", "link.ts", "{run}/result.json", ""])
def test_predictions_never_replace_their_input(out, run, read_error, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path(shutil.copy(find_data("sequence", "japanese_vowels"), tmp_path / "mine.ts"))
    Path("link.ts").symlink_to(file)
    before = file.read_bytes()
    error = read_error(predict_files, str(run), [str(file)], out.format(file=file, run=run))
    assert ("name another file" if out else "cannot use .: Is a directory") in error
    assert file.read_bytes() == before
    for _ in range(2):  # its own may be written again
        predict_files(str(run), [str(file)], "predictions.csv")


def test_weights_that_are_others_of_another_shape_none_or_gone_are_found(run, read_error) -> None:
    result = json.loads((run / "result.json").read_text())
    result["metrics"]["test/loss"] = math.nan
    (run / "result.json").write_text(json.dumps(result | {"digest": compute_digest(result)}))
    set_weights(run, lambda old: {name: math.nan * weight for name, weight in old.items()})
    assert "its checkpoint scores: test/accuracy;" in read_error(verify_run, str(run))
    path = set_weights(run, lambda old: {name: torch.zeros(3, 3) for name in old})
    error = read_error(verify_run, str(run))
    assert f"{path} is of another model" in error
    assert "copying a param with shape" in error
    set_weights(run, lambda _: [1])
    assert "is of another model" in read_error(load_best_epoch, run)
    shutil.rmtree(run / "checkpoints")
    assert "is gone" in read_error(verify_run, str(run))


@pytest.mark.parametrize(("name", "old"), [
    ("result.json", '"epochs": '), ("config.yaml", "seed_everything: "),
])  # fmt: skip
def test_edited_files_are_named(run, read_error, name, old) -> None:
    (run / name).write_text((run / name).read_text().replace(old, f"{old}1", 1))
    assert f"{run / name} was changed after the run" in read_error(verify_run, str(run))
