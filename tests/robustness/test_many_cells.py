"""Hundreds of cells, really trained for a step by one launcher, each once and with a result."""

import time

import pytest
import torch
from experiment_kit.launch import execute
from experiment_kit.launch.plan import Experiment, plan_runs
from rich.console import Console

from tests.apps.tiny import NARROW

STEP = "--trainer.max_steps=1", "--trainer.limit_test_batches=1", "--trainer.limit_val_batches=1"
WORKERS = 2


@pytest.mark.robustness
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("count", [8, 200])
def test_every_cell_is_trained_once(count, tmp_path, monkeypatch) -> None:
    names = {"app": "sequence", "data": "japanese_vowels", "backbone": "uea", "method": "plain"}
    args = (*NARROW, *STEP)
    experiments = [Experiment(**names, profile="smoke", seed=n, args=args) for n in range(count)]
    folder, console = str(tmp_path), Console(record=True, width=200)
    began, runs = time.monotonic(), plan_runs(experiments, folder)
    planned = time.monotonic()
    assert execute.run_missing(runs, folder, WORKERS, console) == 0
    print(f"{count} cells: planned in {planned - began:.1f} s, ", end="")
    print(f"trained in {(time.monotonic() - planned) / count:.1f} s each")

    scores = set()
    for experiment, run in runs.items():
        result = run.read_result()
        assert result is not None
        assert (result["seed"], result["hash"]) == (experiment.seed, run.folder.name[-10:])
        assert (run.folder / "log.txt").read_text().count("finished ") == 1
        (last,) = run.checkpoint_folder.glob("step=*.ckpt")
        weights = torch.load(last, weights_only=True)["state_dict"].values()
        scores.add(sum(part.double().abs().sum().item() for part in weights))
    assert len(scores) == count  # of as many seeds
    assert len([*tmp_path.rglob("result.json")]) == count

    monkeypatch.setattr(execute, "run_jobs", lambda *_: pytest.fail("a finished cell was started"))
    assert execute.run_missing(runs, folder, WORKERS, console) == 0
    assert f"{count} of {count} runs finished" in console.export_text()
