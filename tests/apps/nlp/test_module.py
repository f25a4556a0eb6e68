"""The language app: every method trains, a run is watched and ends whole."""

import json
import re
from pathlib import Path

import pytest
import torch
from attention_core import detach
from attention_nlp.__main__ import APP
from experiment_kit.cli import main
from experiment_kit.launch import compose

from tests.apps.nlp.small import TINY
from tests.apps.overlays import NLP
from tests.apps.tiny import only_run


@pytest.mark.parametrize("architecture", TINY)
@pytest.mark.parametrize("method", ["gfsa", "gfsa_even", "attnscale", "contranorm", "centered"])
def test_every_method_learns_on_every_architecture(architecture: str, method: str) -> None:
    model = NLP.read("method", method)["model"]
    if architecture == "albert" and "layers" in model:
        pytest.skip("its layers share one attention")
    if "tokens" in model and architecture not in ("bert", "albert", "roberta"):
        pytest.skip("the position `residual` is BERT's")
    arguments = [f"--model.options={json.dumps(TINY[architecture])}"]
    arguments += [f"--model.architecture={architecture}", "--data.init_args.vocab_size=53"]
    module = NLP.model(*arguments, method=method)
    torch.manual_seed(0)
    ids = torch.randint(3, 53, (4, 9))
    ids[:, -1] = 2  # BART pools the end of the sequence
    batch = [ids, torch.ones_like(ids).bool(), torch.zeros_like(ids), torch.tensor([0, 1, 0, 1])]
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        loss = module.task.compute_loss(module.model, batch)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert min(losses[1:]) < losses[0]
    own = [p for n, p in module.model.named_parameters() if {"filter", "tokens"} & {*n.split(".")}]
    assert all(p.grad.abs().sum() > 0 for p in own if p.requires_grad)
    changed = module.task.predict(module.model, batch)
    detach(module.model)
    assert not torch.allclose(changed, module.task.predict(module.model, batch), atol=1e-6)


SENTENCES = {
    "--model.weights=no-such/folder": "neither a local folder .* nor reachable on the hub",
    "--model.architecture=elmo": "model.architecture must be one of bert",
    "--data.init_args.max_length=600": "max_length 600 is longer than the 512 positions of bert",
    "--data.init_args.name=wnli": "data.name must be one of docs, got 'wnli'",
    "--model.filter.init_args.K=0": "K must be a whole number of at least 1",
    "--model.layers=9:": "names none of the",
    "--data.init_args.val_fraction=1.5": "must be in",
}


@pytest.mark.parametrize("argument", SENTENCES)
def test_a_mistake_is_one_sentence_and_status_2(argument, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SystemExit) as stop:
        fit(tmp_path, argument, method="gfsa")
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip()
    assert "Traceback" not in error
    assert len(error.splitlines()) == 1
    assert re.search(SENTENCES[argument], error)


def fit(folder: Path, *extra: str, method: str = "plain", **chosen: str):
    """Train in this process for a few steps, and return the one run in the folder."""
    settings = (
        f"--run.folder={folder}",
        f"--model.options={json.dumps(TINY['bert'])}",
        "--data.init_args.batch_size=4",
        "--trainer.max_epochs=2",
        "--trainer.limit_train_batches=3",
        "--trainer.limit_val_batches=2",
        "--trainer.limit_test_batches=2",
        "--trainer.enable_progress_bar=false",
        "--trainer.accelerator=cpu",
        "--spectral.every_n_steps=3",
    )
    named = {"data": "docs", "backbone": "bert_tiny", "profile": "smoke", "method": method} | chosen
    main(APP, ["fit", *compose.arguments("nlp", (*settings, *extra), **named)])
    return only_run(folder)


@pytest.mark.parametrize("method", ["plain", "gfsa", "contranorm"])
def test_a_run_is_watched_and_ends_with_a_result(method: str, tmp_path) -> None:
    run = fit(tmp_path, method=method)
    result = run.result()
    assert {"test/accuracy", "last/accuracy", "test/matthews"} <= set(result["metrics"])
    assert result["origin"] == "random"
    watched = json.loads((run.folder / "spectral.json").read_text())
    assert (len(watched["depth"]), len(watched["response"])) == (3, 2)
    assert bool(watched["coefficients"]) == (method == "gfsa")
