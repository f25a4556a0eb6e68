"""A run of the sequence app that takes a second: real overlays, real data, a narrow model."""

from pathlib import Path

from attention_sequence import APP
from experiment_kit.cli import run_app
from experiment_kit.launch.overlays import overlay_arguments
from experiment_kit.run import Run

from tests.apps.contract import find_run

NARROW = (
    *("--model.dim=16", "--model.ffn_dim=16", "--model.num_heads=2", "--trainer.accelerator=cpu"),
    *("--trainer.limit_train_batches=5", "--trainer.limit_test_batches=4"),
    *("--trainer.enable_progress_bar=false", "--spectral.every_n_steps=0"),
)


def arguments(folder: Path, *extra: str, method: str = "plain") -> list[str]:
    chosen = {"data": "japanese_vowels", "backbone": "uea", "method": method, "profile": "smoke"}
    return overlay_arguments("sequence", (*NARROW, f"--run.folder={folder}", *extra), **chosen)


def fit(folder: Path, *extra: str, method: str = "plain") -> Run:
    """Train in this process, and return the one run in the folder."""
    run_app(APP, ["fit", *arguments(folder, *extra, method=method)])
    return find_run(folder)
