"""Finished runs: their config, and the model of their best epoch."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from experiment_kit.cli import AppCLI
from experiment_kit.errors import UserError
from experiment_kit.launch.plan import load_app
from experiment_kit.pages.records import read_config
from experiment_kit.run import Run


def read_run(folder: Path) -> dict[str, Any]:
    """Return the config of a finished run, and its app; UserError if it has not finished."""
    result, config = Run(folder).read_result(), read_config(folder / "config.yaml")
    if result is None or config is None:
        raise UserError(f"{folder} is the folder of no finished run: it lacks result.json or "
                        "config.yaml")  # fmt: skip
    return {**config, "app": result["app"]}


def load_best_epoch(folder: Path, app: str) -> tuple[Any, Any]:
    """Build the model of a finished run with the weights of its best epoch, and its data."""
    cli = AppCLI(load_app(app), ["fit", "-c", str(folder / "config.yaml")])
    model, data = cli.build_model_and_data()
    path = Run(folder).find_test_checkpoint()
    if path is None:
        raise UserError(f"{folder} has no checkpoint: its answers are gone")
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True)["state_dict"])
    model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    data.prepare_data()
    return model, data


def answer_batches(model: Any, loader: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each batch and the output of `predict_step` for it."""
    with torch.no_grad():
        for number, batch in enumerate(loader):
            moved = model.transfer_batch_to_device(batch, model.device, 0)
            yield batch, model.predict_step(moved, number)
