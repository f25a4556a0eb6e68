"""Training and scoring of an image classifier, with the four slots of every mechanism."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from attention_core import Plain, attach
from attention_core.hook_points import Position
from experiment_kit.errors import UserError
from experiment_kit.optim import Constant, Schedule, decay_groups, scheduled
from experiment_kit.penalties import penalised
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from attention_vision.losses import HAT, CrossEntropy, Mix
from attention_vision.models import (
    ClassToken,
    build_model,
    find_embedding,
    list_blocks,
    load_checkpoint,
)

Batch = Sequence[Tensor]  # images (B, 3, S, S), labels (B,)


class VisionClassifier(LightningModule):
    r"""A timm model whose attention has slots, trained on mixed images.

    .. math:: \mathcal{L} = \mathrm{loss} + \tfrac{1}{L} \sum_l \mathrm{penalty}_l

    with the penalty of kernels that have one (AGF). `num_classes` and `image_size` come from the
    data. `layers` says which layers the slots sit in, `position` where `tokens` sit in them; the
    others stay plain. `global_batch` is met on any number of devices by accumulating gradients.
    `ema` is the decay of averaged weights, which are scored beside the raw ones.

    Raises ValueError where `build_model` and `attach` do, and UserError for a checkpoint of another
    model and for a global batch that the devices cannot share.

    >>> small = {"depth": 1, "embed_dim": 12, "num_heads": 3}
    >>> VisionClassifier(10, 32, model_kwargs=small).model.head.out_features
    10
    """

    accuracy: Any

    def __init__(
        self,
        num_classes: int,
        image_size: int,
        backbone: str = "deit_tiny_patch16_224",
        model_kwargs: dict[str, Any] | None = None,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        class_token: ClassToken | None = None,
        filter: Callable[[int], nn.Module] = Plain,
        kernel: Callable[[int, int], nn.Module] | None = None,
        tokens: Callable[[int], nn.Module] | None = None,
        reparam: Callable[[int], nn.Module] | None = None,
        layers: str = ":",
        position: Position = "attention",
        checkpoint: str | None = None,
        loss: Callable[[int, int], nn.Module] = CrossEntropy,
        mix: Mix | None = None,
        optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW,
        weight_decay: float = 0.05,
        decay_all: bool = False,
        schedule: Schedule | None = None,
        global_batch: int | None = None,
        ema: float | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()  # what the config says, not the objects made of it
        self.make_optimizer, self.weight_decay = optimizer, weight_decay
        self.decay_all, self.schedule = decay_all, schedule or Constant()
        self.mix, self.global_batch = mix or Mix(), global_batch
        self.model = build_model(
            backbone, num_classes, image_size, model_kwargs, dropout, drop_path, class_token
        )
        attach(self.model)  # Plain everywhere, so that every layer's map can be watched
        slots: dict[str, Any] = {"kernel": kernel, "tokens": tokens, "reparam": reparam}
        attach(self.model, filter, layers, position=position, **slots)
        if checkpoint:
            load_checkpoint(self.model, checkpoint)
        self.training_loss = loss(self.model.num_features, num_classes)
        if isinstance(self.training_loss, HAT) and any(
            hasattr(m, "penalty") for m in self.modules()
        ):
            raise ValueError("model.loss: HAT takes no kernel that has a penalty")
        self.ema = _average_weights(self.model, ema)
        scored = [f"{stage}_{kind}" for stage in ("val", "test") for kind in self._scored_models()]
        self.accuracy = nn.ModuleDict(
            {name: MulticlassAccuracy(num_classes, average="micro") for name in scored}
        )
        self.eval_loss: Any = nn.ModuleDict({stage: MeanMetric() for stage in ("val", "test")})

    def _scored_models(self) -> dict[str, nn.Module]:
        return {"raw": self.model} | ({} if self.ema is None else {"ema": self.ema})

    def setup(self, stage: str) -> None:
        """Accumulate as many batches as make the global batch on the devices that there are."""
        data: Any = getattr(self.trainer, "datamodule", None)
        if stage != "fit" or data is None:
            return
        size = data.batch_size
        if size % 2 and (self.mix.mixup or self.mix.cutmix):
            raise UserError(f"data.batch_size must be even for mixup and CutMix, got {size}")
        if self.global_batch is not None:
            together = size * self.trainer.world_size
            if self.global_batch % together:
                raise UserError(
                    f"model.global_batch {self.global_batch} is no multiple of {together}, "
                    f"{size} images on each of {self.trainer.world_size} devices"
                )
            count = self.global_batch // together
            if self.trainer.accumulate_grad_batches not in (1, count):
                raise UserError(
                    f"trainer.accumulate_grad_batches is {count} by model.global_batch: give one"
                )
            self.trainer.accumulate_grad_batches = count

    def configure_model(self) -> None:
        """Shard block by block where the strategy has a mesh of devices (FSDP2)."""
        if self.device_mesh is None or isinstance(self.model, FSDPModule):  # sharded by fit
            return
        if self.ema is not None or isinstance(self.training_loss, HAT):
            raise UserError("model.ema must be null, and HAT not used, where weights are sharded")
        if self.device_mesh["tensor_parallel"].size() > 1:
            raise UserError("trainer.strategy: tensor_parallel_size must be 1")
        mesh = self.device_mesh["data_parallel"]
        for part in (*list_blocks(self.model), self.model, *self.training_loss.children()):
            fully_shard(part, mesh=mesh)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The objective, and what the kernels add."""
        images, labels = batch
        mix, epoch = self.mix, self.current_epoch
        return penalised(self, lambda: self.training_loss(self.model, images, labels, mix, epoch))

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Step, and average the weights after it."""
        super().optimizer_step(*args, **kwargs)
        if self.ema is not None:
            self.ema.update_parameters(self.model)

    def _evaluate(self, batch: Batch, stage: str) -> None:
        images, labels = batch
        for kind, model in self._scored_models().items():
            logits = model(images)
            metric = self.accuracy[f"{stage}_{kind}"]
            metric.update(logits, labels)
            name = "accuracy" if kind == "raw" else f"{kind}_accuracy"
            self.log(f"{stage}/{name}", metric, prog_bar=kind == "raw")
            if kind == "raw":
                self.eval_loss[stage].update(F.cross_entropy(logits, labels), len(images))
                self.log(f"{stage}/loss", self.eval_loss[stage])

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Score the images that choose the epoch."""
        self._evaluate(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Score the test set."""
        self._evaluate(batch, "test")

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Logits (B, C) of the raw weights."""
        return self.model(batch[0])

    def layers(self) -> Sequence[nn.Module]:
        """The modules whose outputs are tokens, for the spectral monitor."""
        return [find_embedding(self.model), *list_blocks(self.model)]

    def token_mask(self, batch: Batch) -> None:
        """All tokens are real, for the spectral monitor."""
        return None

    def configure_optimizers(self) -> Any:
        """The optimiser over parameters with and without decay, and the schedule."""
        trained = nn.ModuleList([self.model, self.training_loss])
        groups = decay_groups(trained, self.weight_decay, self.model.no_weight_decay())
        if self.decay_all:
            groups = [{**group, "weight_decay": self.weight_decay} for group in groups]
        optimizer = self.make_optimizer(groups)
        return [optimizer], [scheduled(self.schedule, optimizer, self.trainer)]


def _average_weights(model: nn.Module, decay: float | None) -> AveragedModel | None:
    if decay is None:
        return None
    if not 0 <= decay < 1:
        raise ValueError(f"model.ema is a decay in [0, 1), got {decay}")
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    return averaged.requires_grad_(False)
