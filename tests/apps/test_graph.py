"""The graph app, end to end: every method trains, is watched, and ends with a result."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from attention_core import GFSA, Plain
from attention_graph.__main__ import APP
from attention_graph.data import Invented, prepare
from attention_graph.module import GraphRegressor
from experiment_kit.cli import main
from experiment_kit.launch import compose

from tests.apps.tiny import only_run

METHODS = compose.names("graph", "method")
NARROW = (
    *("--model.width=16", "--model.hidden=16", "--model.heads=2", "--model.depth=2"),
    *("--trainer.max_epochs=2", "--trainer.limit_train_batches=4"),
    *("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"),
    *("--data.init_args.count=60", "--data.init_args.batch_size=8"),
)


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    """One for all tests, and none of the user's."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(prepare, "CACHE", tmp_path_factory.mktemp("graphs"))
        yield


def arguments(folder: Path, *extra: str, method: str = "plain") -> list[str]:
    chosen = {"data": "invented", "backbone": "graphormer_slim", "recipe": "short"}
    everything = (*NARROW, f"--run.folder={folder}", *extra)
    return compose.arguments("graph", everything, method=method, profile="smoke", **chosen)


def fit(folder: Path, *extra: str, method: str = "plain"):
    main(APP, ["fit", *arguments(folder, *extra, method=method)])
    return only_run(folder)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_is_watched(method: str, tmp_path) -> None:
    run = fit(tmp_path, "--spectral.every_n_steps=4", method=method)
    result = run.result()
    assert {"test/mae", "last/mae", "train/mae", "val/mae", "time/epoch"} <= set(result["metrics"])
    assert 0 < result["metrics"]["test/mae"] < 5
    watched = json.loads((run.folder / "spectral.json").read_text())
    assert [len(watched[part]) for part in ("depth", "response")] == [3, 2]
    names = {name.split(".")[-2] for name in watched["coefficients"]}
    slots = {"plain": set(), "centered": set(), "contranorm": set(), "featscale": {"tokens"}}
    assert names == slots.get(method, {"filter"})


@pytest.mark.parametrize("method", [Plain, GFSA])
def test_a_model_learns_a_few_molecules_by_heart(method) -> None:
    torch.manual_seed(0)
    data = Invented(count=60, batch_size=16)
    data.setup("fit")
    batch = next(iter(data.val_dataloader()))
    sizes = {"width": 32, "hidden": 32, "heads": 4, "depth": 2, "filter": method}
    silent = {"input_dropout": 0.0, "attention_dropout": 0.0, "dropout": 0.0}
    module = GraphRegressor(64, 64, **sizes, **silent)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for _ in range(60):
        loss = (module(batch) - batch.y).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.3 * (batch.y - batch.y.mean()).abs().mean()


def test_a_run_is_a_function_of_its_seed(tmp_path) -> None:
    def found(name: str) -> float:
        run = fit(tmp_path / name, "--spectral.every_n_steps=0", method="gfsa")
        return run.result()["metrics"]["test/mae"]

    assert found("one") == found("another")


def test_the_model_and_its_data_have_one_fidelity(tmp_path) -> None:
    run = fit(tmp_path, "--spectral.every_n_steps=0", "--model.fidelity=released")
    config = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert config["data"]["init_args"]["fidelity"] == config["model"]["fidelity"] == "released"
    assert run.result()["metrics"]["test/mae"] < 5


def test_predictions_are_of_the_test_part(tmp_path, capsys) -> None:
    run = fit(tmp_path, "--spectral.every_n_steps=0")
    main(APP, ["predict", *arguments(tmp_path, "--spectral.every_n_steps=0")])
    batches = torch.load(run.folder / "predictions.pt", weights_only=True)
    assert torch.cat(batches).shape == (6,)


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        (["--model.heads=3"], "the width 16 is not divisible by 3 heads"),
        (["--model.max_hops=50"], "model.max_hops must be from 1 to model.hop_rows, 40, got 50"),
        (["--model.layers='5:'"], "layers"),
        (["--data.init_args.count=3"], "data.count must be at least 10, got 3"),
        (["--model.kernel=attention_core.AGF"], "other maps have none: leave it out"),
    ],
)
def test_what_does_not_fit_ends_with_a_sentence(extra, sentence, tmp_path, capsys) -> None:
    with pytest.raises(SystemExit) as left:
        fit(tmp_path, *extra)
    assert left.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert sentence in said
    assert "Traceback" not in said
