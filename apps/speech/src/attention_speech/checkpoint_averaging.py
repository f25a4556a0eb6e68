"""Average the weights of the best epochs; the mean is what is tested."""

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lightning
import torch
from experiment_kit.training.lightning_patches import BestCheckpoint
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor


class SavedEpoch(NamedTuple):
    """The weights of an epoch and its score; the file name holds both numbers."""

    score: float
    epoch: int
    path: Path


def list_saved_epochs(folder: Path) -> list[SavedEpoch]:
    """Return the epochs saved in a folder, the best first; of equal scores the earlier epoch."""
    matches = ((re.fullmatch(r"epoch=(\d+)-score=(.+)", p.stem), p) for p in folder.glob("*.ckpt"))
    return _sort_best_first(SavedEpoch(float(m[2]), int(m[1]), path) for m, path in matches if m)


def _sort_best_first(epochs: Iterable[SavedEpoch]) -> list[SavedEpoch]:
    return sorted(epochs, key=lambda saved: (-saved.score, saved.epoch))


def average_weights(paths: Sequence[Path], parameters: Collection[str]) -> dict[str, Tensor]:
    r"""Average the parameters of checkpoints in float64; all buffers are those of the first.

    .. math:: \bar\theta = \frac{1}{N} \sum_n \theta_n

    speechbrain's `average_state_dicts` sums in the dtype of the weights and averages buffers too.
    """
    total: dict[str, Tensor] = {}
    for path in paths:
        weights = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
        if not total:
            total = {k: w.double() if k in parameters else w for k, w in weights.items()}
            dtypes = {k: w.dtype for k, w in weights.items()}
            continue
        for name in parameters:
            total[name] += weights[name].double()
    means = {k: total[k] / len(paths) for k in parameters}
    return {k: means.get(k, w).to(dtypes[k]) for k, w in total.items()}


class CheckpointAveraging(Callback):
    """Keep the weights of the best epochs, and test `best.ckpt` with their mean.

    Weights are saved atomically in the folder `averaged` beside best.ckpt. The folder is the whole
    state: a resumed run deletes the epochs that it has not reached yet. Any other checkpoint than
    best.ckpt is tested as it is. Lightning's `ModelCheckpoint(save_top_k=N)` keeps its list in a
    training checkpoint, which testing does not restore.

    Source: https://arxiv.org/abs/1803.05407
    """

    def __init__(self, num_epochs: int, monitor: str = "val/score") -> None:
        if num_epochs < 1:
            raise ValueError(f"model.num_averaged_epochs must be at least 1, got {num_epochs}")
        self.num_epochs, self.monitor = num_epochs, monitor

    def on_validation_end(self, trainer: Any, pl_module: LightningModule) -> None:
        """Save the epoch if it is one of the best, and delete those that no longer are."""
        fitting = trainer.state.fn == TrainerFn.FITTING
        if not fitting or trainer.sanity_checking or trainer.fast_dev_run:
            return
        score, epoch = trainer.callback_metrics[self.monitor].item(), trainer.current_epoch
        folder = Path(trainer.default_root_dir) / "checkpoints" / "averaged"
        path = folder / f"epoch={epoch}-score={score:.9f}.ckpt"
        known = [saved for saved in list_saved_epochs(folder) if saved.epoch <= epoch]
        # several validations within an epoch: the best one counts
        better = [saved for saved in known if saved.epoch == epoch and saved.score > score][:1]
        earlier = [saved for saved in known if saved.epoch < epoch]
        new = better or [SavedEpoch(score, epoch, path)]
        best = _sort_best_first([*earlier, *new])[: self.num_epochs]
        paths = {saved.path for saved in best}
        if trainer.strategy.broadcast(path in paths):  # rank 0 decides
            found = [c.validated for c in trainer.callbacks if isinstance(c, BestCheckpoint)]
            # sharded weights are whole on the first rank, and {} on the others
            weights = found[0] if found else trainer.strategy.lightning_module_state_dict()
            # what Lightning needs to test or validate this file by --ckpt_path
            place = {"epoch": trainer.current_epoch, "global_step": trainer.global_step}
            place["pytorch-lightning_version"] = lightning.__version__
            trainer.strategy.save_checkpoint({"state_dict": weights, **place}, path)
        if trainer.is_global_zero:
            for saved in list_saved_epochs(folder):
                if saved.path not in paths:
                    saved.path.unlink()
        trainer.strategy.barrier()

    def average_epochs(self, checkpoint: Path, module: LightningModule) -> dict[str, Tensor]:
        """Return the mean that replaces the weights of best.ckpt; {} where there is none."""
        best = list_saved_epochs(checkpoint.parent / "averaged")[: self.num_epochs]
        names = {name for name, _ in module.named_parameters()}
        is_best = checkpoint.name == "best.ckpt"
        return average_weights([saved.path for saved in best], names) if best and is_best else {}

    def on_test_start(self, trainer: Any, pl_module: LightningModule) -> None:
        """Replace the weights of best.ckpt by the mean."""
        if weights := self.average_epochs(Path(trainer.ckpt_path or ""), pl_module):
            trainer.strategy.load_model_state_dict({"state_dict": weights}, strict=True)

    on_predict_start = on_test_start
