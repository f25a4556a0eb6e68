"""The mean of the weights of the best epochs, which is what is tested."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from experiment_kit.errors import UserError
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor


class Kept(NamedTuple):
    """The weights of an epoch, and what it scored; the file's name says both."""

    score: float
    epoch: int
    path: Path


def kept(folder: Path) -> list[Kept]:
    """What a folder keeps, the best first; of equal ones the earlier.

    >>> kept(Path("no/such/folder"))
    []
    """
    named = ((re.fullmatch(r"epoch=(\d+)-score=(.+)", p.stem), p) for p in folder.glob("*.ckpt"))
    found = [Kept(float(name[2]), int(name[1]), path) for name, path in named if name]
    return sorted(found, key=lambda one: (-one.score, one.epoch))


def mean_weights(paths: Sequence[Path], parameters: Collection[str]) -> dict[str, Tensor]:
    r"""The mean of the parameters of checkpoints; what else there is, is that of the first.

    .. math:: \bar\theta = \frac{1}{N} \sum_n \theta_n

    Raises UserError for a file that cannot be read, or that is of another model.
    """
    total: dict[str, Tensor] = {}
    for path in paths:
        weights = _read(path)
        if not total:
            total = {k: w.double() if k in parameters else w for k, w in weights.items()}
            dtypes = {k: w.dtype for k, w in weights.items()}
            continue
        if {k: w.shape for k, w in weights.items()} != {k: w.shape for k, w in total.items()}:
            raise UserError(f"{path} is of another model than {paths[0]}: remove its folder")
        for name in parameters:
            total[name] += weights[name].double()
    scale = {name: len(paths) for name in parameters}
    return {k: (w / scale[k] if k in scale else w).to(dtypes[k]) for k, w in total.items()}


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    except Exception as error:  # whatever a damaged archive makes the reader raise
        raise UserError(f"{path} is damaged: remove it, and the others are averaged") from error


class BestAverage(Callback):
    """Keep the weights of the epochs that scored best, and test `best.ckpt` as their mean.

    They lie in `averaged` beside best.ckpt, written atomically, and are all the state there is: a
    resumed run drops those of epochs that it has not reached. Another checkpoint than best.ckpt,
    and the weights in memory, are tested as they are. Buffers, such as the moments of features,
    are those of the best epoch.

    Raises ValueError for a count below one.

    Source: https://arxiv.org/abs/1803.05407
    """

    def __init__(self, count: int, monitor: str = "val/score") -> None:
        if count < 1:
            raise ValueError(f"model.average must be at least 1, got {count}")
        self.count, self.monitor = count, monitor

    def on_validation_end(self, trainer: Any, pl_module: LightningModule) -> None:
        """Keep the epoch if it is one of the best."""
        fitting = trainer.state.fn == TrainerFn.FITTING
        if not fitting or trainer.sanity_checking or trainer.fast_dev_run:
            return
        score, epoch = trainer.callback_metrics[self.monitor].item(), trainer.current_epoch
        folder = Path(trainer.default_root_dir) / "checkpoints" / "averaged"
        path = folder / f"epoch={epoch}-score={score:.9f}.ckpt"
        before = [one for one in kept(folder) if one.epoch < epoch]
        best = sorted([*before, Kept(score, epoch, path)], key=lambda k: (-k.score, k.epoch))
        chosen = {one.path for one in best[: self.count]}
        if trainer.strategy.broadcast(path in chosen):  # as rank 0 sees the folder
            weights = trainer.strategy.lightning_module_state_dict()
            trainer.strategy.save_checkpoint({"state_dict": weights}, path)
        if trainer.is_global_zero:
            for one in kept(folder):
                if one.path not in chosen:
                    one.path.unlink()
        trainer.strategy.barrier()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the mean in the place of the best."""
        self._load(trainer, pl_module)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the mean in the place of the best."""
        self._load(trainer, pl_module)

    def _load(self, trainer: Any, pl_module: LightningModule) -> None:
        path = Path(trainer.ckpt_path or "")
        found = kept(path.parent / "averaged")[: self.count] if path.name == "best.ckpt" else []
        if found:
            names = {name for name, _ in pl_module.named_parameters()}
            weights = mean_weights([one.path for one in found], names)
            trainer.strategy.load_model_state_dict({"state_dict": weights}, strict=True)
