"""The speech app, end to end: every method trains on speech made here, is watched, and decoded."""

import json
from pathlib import Path

import pytest
import torch
from attention_speech.__main__ import APP
from attention_speech.audio import manifest
from attention_speech.data import own
from experiment_kit.cli import main
from experiment_kit.launch import compose

from tests.apps.tiny import only_run

METHODS = compose.names("speech", "method")
NARROW = (
    *("--model.size.width=16", "--model.size.heads=2", "--model.size.hidden=16"),
    *("--model.size.encoder_layers=2", "--model.size.decoder_layers=1", "--model.size.gate=16"),
    *("--model.size.channels=[4,4]", "--model.bank.bands=20", "--model.average=1"),
    *("--trainer.max_epochs=1", "--trainer.limit_train_batches=3"),
    *("--trainer.limit_val_batches=1", "--trainer.limit_test_batches=1"),
    *("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"),
    *("--data.init_args.count=20", "--data.init_args.engine=formants"),
    *("--data.init_args.max_batch=3", "--model.search.longest=0.2"),
)


@pytest.fixture(scope="module", autouse=True)
def _corpus(tmp_path_factory):
    """One for all tests, and none of the user's."""
    with pytest.MonkeyPatch.context() as patched:
        folder = tmp_path_factory.mktemp("speech")
        patched.setattr(own, "CACHE", folder)
        patched.setattr(manifest, "CACHE", folder)
        yield


def arguments(folder: Path, *extra: str, method: str, backbone: str) -> list[str]:
    chosen = {"data": "own", "backbone": backbone, "recipe": "small", "profile": "smoke"}
    everything = (*NARROW, f"--run.folder={folder}", *extra)
    return compose.arguments("speech", everything, method=method, **chosen)


def fit(folder: Path, *extra: str, method: str = "plain", backbone: str = "transformer_small"):
    main(APP, ["fit", *arguments(folder, *extra, method=method, backbone=backbone)])
    return only_run(folder)


@pytest.mark.parametrize(
    ("method", "backbone"),
    [*((method, "transformer_small") for method in METHODS), ("gfsa", "branchformer_small")],
)
def test_every_method_trains_is_watched_and_decodes(method, backbone, tmp_path) -> None:
    run = fit(tmp_path, "--spectral.every_n_steps=3", method=method, backbone=backbone)
    metrics = run.result()["metrics"]
    assert {"test/wer", "test/cer", "test/rtf", "test/deletions", "val/score"} <= set(metrics)
    assert metrics["test/wer"] >= 0
    watched = json.loads((run.folder / "spectral.json").read_text())
    assert [len(watched[part]) for part in ("depth", "response")] == [3, 2]
    head, *lines = (run.folder / "hypotheses.txt").read_text().splitlines()
    assert head.split("\t")[-2:] == ["reference", "hypothesis"]
    assert 1 <= len(lines) <= 3


def test_a_beam_hears_no_less_than_greedy_ctc(tmp_path) -> None:
    chosen = {"data": "own", "backbone": "transformer_small", "recipe": "small", "profile": "smoke"}
    brief = [
        *("--trainer.max_epochs=4", "--model.average=1", "--data.init_args.speed=[]"),
        *("--trainer.limit_val_batches=1", "--trainer.limit_test_batches=3"),
        *("--spectral.every_n_steps=0", "--data.init_args.engine=formants"),
        *("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"),
        f"--run.folder={tmp_path}",
    ]
    main(APP, ["fit", *compose.arguments("speech", brief, method="plain", **chosen)])
    metrics = only_run(tmp_path).result()["metrics"]
    assert metrics["test/wer"] <= min(metrics["test/greedy_wer"], 0.6)


def test_predictions_are_texts_and_averages_are_kept(tmp_path) -> None:
    extra = "--spectral.every_n_steps=0", "--model.average=2", "--trainer.max_epochs=3"
    run = fit(tmp_path, *extra)
    kept = list((run.checkpoint_folder / "averaged").glob("*"))
    assert len(kept) == 2
    command = arguments(tmp_path, *extra, method="plain", backbone="transformer_small")
    main(APP, ["predict", *command])
    batches = torch.load(run.folder / "predictions.pt", weights_only=True)
    heard = dict(pair for batch in batches for pair in batch)
    tested = (run.folder / "hypotheses.txt").read_text()
    assert heard
    assert all(name in tested and isinstance(text, str) for name, text in heard.items())


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        (["--model.size.heads=3"], "width must be even and a multiple of the heads, got 16 and 3"),
        (["--model.ctc_weight=1.0"], "model.ctc_weight must be from 0 to below 1, got 1.0"),
        (["--data.init_args.max_seconds=99"], "data.batch_seconds must be at least"),
        (["--data.init_args.vocabulary=3"], "data.vocabulary must be at least 5, got 3"),
        (["--model.kernel=attention_core.AGF"], "has no place for a kernel"),
        (["--model.reparam=attention_core.EigenSpectrum"], "has no place for a reparam"),
    ],
)
def test_what_does_not_fit_ends_with_a_sentence(extra, sentence, tmp_path, capsys) -> None:
    with pytest.raises(SystemExit) as left:
        fit(tmp_path, *extra)
    assert left.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert sentence in said
    assert "Traceback" not in said
