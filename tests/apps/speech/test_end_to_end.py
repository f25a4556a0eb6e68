"""The command line: every method trains on synthetic speech, is monitored, and is decoded."""

import json
from pathlib import Path

import pytest
import torch
from attention_speech import APP
from attention_speech.audio import manifest
from attention_speech.data import synthetic
from experiment_kit.cli import run_app
from experiment_kit.launch.overlays import list_overlays, overlay_arguments
from experiment_kit.run import Run

from tests.apps.tiny import only_run

METHODS = list_overlays("speech", "method")
QUIET = (
    *("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"),
    *("--data.init_args.engine=formants", "--trainer.limit_val_batches=1"),
)
NARROW = (
    *QUIET,
    *("--model.network.dim=16", "--model.network.num_heads=2", "--model.network.ffn_dim=16"),
    *("--model.network.num_encoder_layers=2", "--model.network.num_decoder_layers=1"),
    *("--model.network.csgu_dim=16", "--model.network.channels=[4,4]", "--model.fbank.n_mels=20"),
    *("--model.num_averaged_epochs=1", "--model.beam_search.max_decode_ratio=0.2"),
    *("--trainer.max_epochs=1", "--trainer.limit_train_batches=3"),
    *("--trainer.limit_test_batches=1", "--data.init_args.num_strings=20"),
    "--data.init_args.max_batch_size=3",
)


@pytest.fixture(scope="module", autouse=True)
def _corpus(tmp_path_factory):
    """Write one corpus for all tests."""
    with pytest.MonkeyPatch.context() as patched:
        folder = tmp_path_factory.mktemp("speech")
        patched.setattr(synthetic, "CACHE_DIR", folder)
        patched.setattr(manifest, "CACHE_DIR", folder)
        yield


def compose_arguments(
    folder: Path, *extra: str, method: str = "plain", backbone: str = "transformer_small"
) -> list[str]:
    chosen = {"data": "synthetic", "backbone": backbone, "recipe": "small", "profile": "smoke"}
    return overlay_arguments("speech", (f"--run.folder={folder}", *extra), method=method, **chosen)


def fit_narrow(folder: Path, *extra: str, **chosen: str) -> Run:
    run_app(APP, ["fit", *compose_arguments(folder, *NARROW, *extra, **chosen)])
    return only_run(folder)


@pytest.mark.parametrize(
    ("method", "backbone"),
    [*((method, "transformer_small") for method in METHODS), ("gfsa", "branchformer_small")],
)
def test_every_method_trains_is_monitored_and_decodes(method, backbone, tmp_path) -> None:
    run = fit_narrow(tmp_path, "--spectral.every_n_steps=3", method=method, backbone=backbone)
    metrics = run.result()["metrics"]
    assert {"test/wer", "test/cer", "test/rtf", "test/deletions", "val/score"} <= set(metrics)
    assert metrics["test/wer"] >= 0
    measured = json.loads((run.folder / "spectral.json").read_text())
    assert [len(measured[part]) for part in ("depth", "response")] == [3, 2]
    header, *lines = (run.folder / "hypotheses.txt").read_text().splitlines()
    assert header.split("\t")[-2:] == ["reference", "hypothesis"]
    assert 1 <= len(lines) <= 3


def test_a_beam_search_is_no_worse_than_greedy_ctc(tmp_path) -> None:
    settings = [
        *("--trainer.max_epochs=4", "--model.num_averaged_epochs=1", "--data.init_args.speeds=[]"),
        *("--trainer.limit_test_batches=3", "--spectral.every_n_steps=0"),
    ]
    run_app(APP, ["fit", *compose_arguments(tmp_path, *QUIET, *settings)])
    metrics = only_run(tmp_path).result()["metrics"]
    assert metrics["test/wer"] <= min(metrics["test/greedy_wer"], 0.6)


def test_predictions_are_texts_and_averaged_epochs_are_kept(tmp_path) -> None:
    extra = ("--spectral.every_n_steps=0", "--model.num_averaged_epochs=2",
             "--trainer.max_epochs=3")  # fmt: skip
    run = fit_narrow(tmp_path, *extra)
    assert len(list((run.checkpoint_folder / "averaged").glob("*"))) == 2
    run_app(APP, ["predict", *compose_arguments(tmp_path, *NARROW, *extra)])
    batches = torch.load(run.folder / "predictions.pt", weights_only=True)
    texts = dict(pair for batch in batches for pair in batch)
    tested = (run.folder / "hypotheses.txt").read_text()
    assert texts
    assert all(name in tested and isinstance(text, str) for name, text in texts.items())


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("--model.network.num_heads=3", "dim must be even and a multiple of num_heads, got 16 and"),
        ("--model.ctc_weight=1.0", "model.ctc_weight must be at least 0 and below 1, got 1.0"),
        ("--data.init_args.max_seconds=99", "data.batch_seconds must be at least"),
        ("--data.init_args.num_tokens=3", "data.num_tokens must be at least 5, got 3"),
        ("--model.kernel=attention_core.AGF", "has no place for a kernel"),
        ("--model.reparam=attention_core.EigenSpectrum", "has no place for a reparam"),
    ],
)
def test_settings_that_do_not_fit_end_with_one_sentence(extra, message, tmp_path, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        fit_narrow(tmp_path, extra)
    assert caught.value.code == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert message in printed
    assert "Traceback" not in printed
