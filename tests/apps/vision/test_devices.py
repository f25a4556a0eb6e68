"""Two devices, and one with twice the batch, end with the same weights under every strategy.

Run as each of two ranks, this module trains what the tests then compare.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from attention_vision import APP
from experiment_kit.cli import run_app
from experiment_kit.launch.overlays import overlay_arguments
from experiment_kit.training.checkpoints import ResumableCheckpoint
from lightning.pytorch import Trainer

from tests.apps.contract import find_run
from tests.processes import start_ranks, wait_for_end
from tests.robustness.compare_runs import compare_runs

pytestmark = pytest.mark.timeout(300)  # processes of their own, on machines of two slow cores
STRATEGY = "--trainer.strategy"
SHARDED = f"{STRATEGY}=lightning.pytorch.strategies.ModelParallelStrategy"
STRATEGIES = {
    "ddp": [f"{STRATEGY}=ddp"],
    "fsdp": [SHARDED, f"{STRATEGY}.data_parallel_size=2", f"{STRATEGY}.tensor_parallel_size=1"],
}
TINY = (
    "--model.model_kwargs={depth: 2, embed_dim: 12, num_heads: 3, patch_size: 16}",
    *("--data.init_args.image_size=32", "--data.init_args.augment.crop_padding=0"),
    *("--model.global_batch=16", "--trainer.max_epochs=2", "--trainer.accelerator=cpu"),
    *("--trainer.enable_progress_bar=false", "--spectral.every_n_steps=2"),
)


def fit(folder: Path, batch: int, steps: int, *extra: str) -> None:
    size = [f"--data.init_args.batch_size={batch}", f"--trainer.limit_train_batches={steps}"]
    size += [f"--trainer.limit_{split}_batches={32 // batch}" for split in ("val", "test")]
    chosen = {"data": "digits", "backbone": "vit_tiny", "method": "gfsa"}
    options = (*TINY, *size, f"--run.folder={folder}", *extra)
    run_app(APP, ["fit", *overlay_arguments("vision", options, **chosen)])


def weights(folder: Path, step: int = 6) -> dict[str, torch.Tensor]:
    path = find_run(folder).checkpoint_folder / f"step={step}.ckpt"
    return torch.load(path, weights_only=True)["state_dict"]


def difference(one: Path, other: Path) -> float:
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    return max((a[name].double() - b[name].double()).abs().max().item() for name in a)


def stop_when(is_due: Callable[[Trainer, int], bool]) -> Any:
    """Ask for a stop before a batch, given the trainer and the number of the batch."""
    hook = ResumableCheckpoint.on_train_batch_start

    def request(self: ResumableCheckpoint, trainer: Trainer, *rest: Any) -> None:
        self.handler.requested = is_due(trainer, rest[-1])
        hook(self, trainer, *rest)

    return patch.object(ResumableCheckpoint, "on_train_batch_start", request)


class Crash(Exception):
    """The end of a process that saves nothing more."""


def crash_at(step: int) -> Any:
    """Raise before the batch behind a step, whose checkpoint is the newest."""
    hook = ResumableCheckpoint.on_train_batch_start

    def save_and_raise(self: ResumableCheckpoint, trainer: Trainer, *rest: Any) -> None:
        hook(self, trainer, *rest)
        if trainer.global_step == step:
            raise Crash

    return patch.object(ResumableCheckpoint, "on_train_batch_start", save_and_raise)


def exit_status(*args: Any) -> int:
    with pytest.raises(SystemExit) as end:
        fit(*args)
    return int(end.value.code or 0)


def on_two_processes(folder: Path) -> None:
    for name, strategy in STRATEGIES.items():
        fit(folder / name, 8, 3, "--trainer.devices=2", *strategy)
        again = (folder / f"{name}-resumed", 8, 3, "--trainer.devices=2", *strategy)
        # after two of the three steps of an epoch, asked of one process
        with stop_when(lambda trainer, _: trainer.global_step == 2 and trainer.global_rank == 1):
            assert exit_status(*again) == 75
        if name == "fsdp":  # test_devices of the launcher kills processes of DDP
            with crash_at(5), pytest.raises(Crash):
                fit(*again, "--checkpoint.every_n_steps=1")
        fit(*again)
    two = (8, 3, "--trainer.devices=2")
    whole = find_run(folder / "ddp").checkpoint_folder / "step=3.ckpt"
    refused = (folder / "refused", *two)
    assert exit_status(*refused, *STRATEGIES["fsdp"], f"--ckpt_path={whole}") == 2
    by_tensors = [SHARDED, f"{STRATEGY}.tensor_parallel_size=2"]
    assert exit_status(*refused, *by_tensors) == 2


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The runs of two processes, and their output."""
    folder = tmp_path_factory.mktemp("two")
    log = folder / "log"
    with start_ranks([__file__, str(folder)], log) as ranks:
        assert [wait_for_end(process, 240) for process in ranks] == [0, 0], log.read_text()
    return folder, log.read_text()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    fit(folder, 16, 3)
    return folder


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_devices_learn_what_one_does_with_twice_the_batch(one, two, strategy) -> None:
    folder = two[0] / strategy
    assert difference(one, folder) < 1e-5
    mine, theirs = (find_run(path).read_result() for path in (folder, one))
    scores, expected = (
        {name: x for name, x in result["metrics"].items() if not name.startswith("time/")}
        for result in (mine, theirs)
    )
    assert scores == pytest.approx(expected, abs=1e-5)
    assert mine["parameters"] == theirs["parameters"]
    assert (find_run(folder).folder / "spectral.json").exists()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_on_two_devices_resumes_in_mid_epoch(two, strategy) -> None:
    folder, output = two
    for step in (2, 5) if strategy == "fsdp" else (2,):
        assert re.search(rf"resuming \S+/{strategy}-resumed/\S+ from step {step}\n", output)
    whole, resumed = (find_run(folder / f"{strategy}{end}") for end in ("", "-resumed"))
    found = compare_runs(whole.folder, resumed.folder)
    assert [line for line in found if not line.startswith("config.yaml")] == []


def test_accumulated_gradients_are_those_of_more_devices(one, tmp_path) -> None:
    fit(tmp_path, 8, 6)
    assert difference(one, tmp_path) < 1e-5


def test_one_device_goes_on_from_sharded_weights(one, two, tmp_path) -> None:
    start_at = find_run(two[0] / "fsdp").checkpoint_folder / "step=3.ckpt"
    fit(tmp_path, 16, 3, f"--ckpt_path={start_at}")
    assert difference(one, tmp_path) < 1e-5


def test_strategies_that_would_train_wrongly_are_refused(two) -> None:
    assert "step=3.ckpt was not trained with sharded weights: continue with" in two[1]
    assert "error: trainer.strategy: tensor_parallel_size must be 1" in two[1]


if __name__ == "__main__":
    torch.set_num_threads(1)
    on_two_processes(Path(sys.argv[1]))
