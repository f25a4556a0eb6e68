"""The graph app, end to end: every method trains, is watched, and ends with a result."""

from pathlib import Path

import pytest
import torch
import yaml
from attention_core import GFSA, Plain
from attention_graph import APP
from attention_graph.data import SyntheticMolecules, graph_cache
from attention_graph.module import GraphRegressor
from experiment_kit.cli import run_app
from experiment_kit.launch.overlays import list_overlays, overlay_arguments

from tests.apps.tiny import only_run

METHODS = list_overlays("graph", "method")
NARROW = (
    *("--model.dim=16", "--model.ffn_dim=16", "--model.num_heads=2", "--model.num_layers=2"),
    *("--trainer.max_epochs=2", "--trainer.limit_train_batches=4"),
    *("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"),
    *("--data.init_args.count=60", "--data.init_args.batch_size=8"),
)


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    """One for all tests, and none of the user's."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(graph_cache, "CACHE", tmp_path_factory.mktemp("graphs"))
        yield


def arguments(folder: Path, *extra: str, method: str = "plain") -> list[str]:
    chosen = {"data": "synthetic", "backbone": "graphormer_slim", "recipe": "short"}
    everything = (*NARROW, f"--run.folder={folder}", *extra)
    return overlay_arguments("graph", everything, method=method, profile="smoke", **chosen)


def fit(folder: Path, *extra: str, method: str = "plain"):
    run_app(APP, ["fit", *arguments(folder, *extra, method=method)])
    return only_run(folder)


@pytest.mark.parametrize("method", [Plain, GFSA])
def test_a_model_learns_a_few_molecules_by_heart(method) -> None:
    torch.manual_seed(0)
    data = SyntheticMolecules(count=60, batch_size=16)
    data.setup("fit")
    batch = next(iter(data.val_dataloader()))
    sizes = {"dim": 32, "ffn_dim": 32, "num_heads": 4, "num_layers": 2, "filter": method}
    silent = {"input_dropout": 0.0, "attention_dropout": 0.0, "dropout": 0.0}
    module = GraphRegressor(64, 64, **sizes, **silent)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for _ in range(150):
        loss = (module(batch) - batch.y).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.3 * (batch.y - batch.y.mean()).abs().mean()


def test_the_model_and_its_data_share_a_variant(tmp_path) -> None:
    run = fit(tmp_path, "--spectral.every_n_steps=0", "--model.variant=upstream")
    config = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert config["data"]["init_args"]["variant"] == config["model"]["variant"] == "upstream"
    assert run.read_result()["metrics"]["test/mae"] < 5
