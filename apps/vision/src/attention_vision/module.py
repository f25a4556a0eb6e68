"""Training and evaluation of an image classifier."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from attention_core import Plain
from attention_core.checks import check_probabilities, check_sizes
from attention_core.hosts.hook_points import Position
from experiment_kit.data.download import PRETRAINED
from experiment_kit.errors import UserError
from experiment_kit.training.module import AttentionModule
from experiment_kit.training.optim import param_groups_weight_decay
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from attention_vision.losses import HAT, CrossEntropy, ImageLoss, Mix
from attention_vision.models.checkpoint import find_timm_weights, load_checkpoint
from attention_vision.models.late_class_token import ClassToken
from attention_vision.models.timm_models import build_model, is_convolutional, list_blocks

Batch = Sequence[Tensor]  # images (B, 3, S, S), labels (B,)


def split_batch(batch: Batch) -> Batch:
    """Return images and labels; UserError for a batch of another form."""
    found = [x for x in batch if isinstance(x, Tensor)]  # a dict has names
    forms = [(x.ndim, x.is_floating_point()) for x in found]
    if forms != [(4, True), (1, False)] or found[0].shape[1] != 3:
        got = ", ".join(f"{tuple(x.shape)} of {x.dtype}" for x in found) or type(batch).__name__
        raise UserError(f"a batch is images (B, 3, S, S), float, and labels (B,); got {got}")
    return found[0], found[1].long()


class VisionClassifier(AttentionModule):
    """A model of timm, trained on mixed images.

    Args:
        num_classes: Number of classes, from the data.
        image_size: Side of the images in pixels, from the data.
        backbone: Model of timm.
        model_kwargs: Arguments of timm's model, such as depth or patch_size.
        dropout: Dropout of the embedding, of attention's projection and of the MLP.
        drop_path: Stochastic depth of the last block.
        class_token: Position of a late class token; null is the backbone's own.
        position: Where `tokens` act.
        checkpoint: File of weights to start from; `pretrained` is timm's, by `allpass weights`.
        loss: Class of the loss and its arguments.
        mix: Mixup, CutMix and label smoothing; null is none.
        global_batch: Images of a step on all devices, by accumulated gradients; null is one batch
            of each device.
        ema: Decay of averaged weights, which are scored beside the raw ones; null is none.
    """

    def __init__(
        self,
        num_classes: int,
        image_size: int,
        backbone: str = "deit_tiny_patch16_224",
        model_kwargs: dict[str, Any] | None = None,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        class_token: ClassToken | None = None,
        position: Position = "attention",
        checkpoint: str | None = None,
        loss: Callable[[int, int], ImageLoss] = CrossEntropy,
        mix: Mix | None = None,
        weight_decay: float = 0.05,
        global_batch: int | None = None,
        ema: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight_decay=weight_decay, **kwargs)
        if global_batch is not None:
            check_sizes("model", global_batch=global_batch)
        self.mix, self.global_batch = mix or Mix(), global_batch
        network = build_model(
            backbone, num_classes, image_size, model_kwargs, dropout, drop_path, class_token
        )
        self.model = network
        if not (is_convolutional(network) and self._attaches_nothing()):
            self.model = self.attach_slots(network, position=position)
        if checkpoint == PRETRAINED:
            checkpoint = find_timm_weights(backbone)
        if checkpoint:
            load_checkpoint(self.model, checkpoint)
        self.loss = loss(self.model.num_features, num_classes)
        if isinstance(self.loss, HAT) and any(hasattr(m, "penalty") for m in self.modules()):
            raise ValueError("model.loss: HAT takes no kernel that has a penalty")
        self.ema: AveragedModel | None = None
        if ema is not None:
            check_probabilities("model", ema=ema)
            average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(ema))
            self.ema = average.requires_grad_(False)
        self.metrics = nn.ModuleDict()
        for prefix in ("val/", "test/"):
            raw, averaged = (MulticlassAccuracy(num_classes, average="micro") for _ in range(2))
            metrics = {"accuracy": raw, "loss": MeanMetric(), "error": MeanMetric()}
            metrics |= {} if ema is None else {"ema_accuracy": averaged}
            self.metrics[prefix] = nn.ModuleDict(metrics)

    def _attaches_nothing(self) -> bool:
        mechanisms = (self.slots[name] for name in ("kernel", "tokens", "reparam"))
        return isinstance(self.slots["filter"](1), Plain) and not any(mechanisms)

    def setup(self, stage: str) -> None:
        """Set how many batches make the global batch on the available devices."""
        data: Any = getattr(self.trainer, "datamodule", None)
        known = hasattr(data, "batch_size")  # own data may have none
        if stage != "fit" or data is None or not (known or self.global_batch):
            return
        size, devices = data.batch_size, self.trainer.world_size
        if size % 2 and (self.mix.mixup or self.mix.cutmix):
            raise UserError(f"data.batch_size must be even for mixup and CutMix, got {size}")
        if self.global_batch is not None:
            if self.global_batch % (size * devices):
                text = f"model.global_batch {self.global_batch} is no multiple of {size * devices},"
                raise UserError(f"{text} {size} images on each of {devices} devices")
            count = self.global_batch // (size * devices)
            if self.trainer.accumulate_grad_batches not in (1, count):
                text = "trainer.accumulate_grad_batches"
                raise UserError(f"{text} is {count} by model.global_batch: set one")
            self.trainer.accumulate_grad_batches = count

    def configure_model(self) -> None:
        """Shard the model block by block if the strategy has a mesh of devices (FSDP2)."""
        if self.device_mesh is None or isinstance(self.model, FSDPModule):  # sharded by fit
            return
        if self.ema is not None or isinstance(self.loss, HAT):
            raise UserError("model.ema must be null, and HAT not used, for sharded weights")
        if self.device_mesh["tensor_parallel"].size() > 1:
            raise UserError("trainer.strategy: tensor_parallel_size must be 1")
        mesh = self.device_mesh["data_parallel"]
        for part in (*list_blocks(self.model), self.model, *self.loss.children()):
            fully_shard(part, mesh=mesh)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Compute the loss and the penalties of the kernels."""
        images, labels = split_batch(batch)
        return self.compute_training_loss(
            lambda: self.loss(self.model, images, labels, self.mix, self.current_epoch)
        )

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Update the weights, then their average."""
        super().optimizer_step(*args, **kwargs)
        if self.ema is not None:
            self.ema.update_parameters(self.model)

    def _evaluate(self, batch: Batch, prefix: str) -> None:
        images, labels = split_batch(batch)
        logits, metrics = self.model(images).float(), self.choose_metrics(prefix)
        metrics["accuracy"].update(logits, labels)
        metrics["loss"].update(F.cross_entropy(logits, labels), len(images))
        metrics["error"].update((logits.argmax(-1) != labels).float())
        if self.ema is not None:
            metrics["ema_accuracy"].update(self.ema(images).float(), labels)
        for name, metric in metrics.items():
            options = {"prog_bar": name == "accuracy", "add_dataloader_idx": False}
            self.log(f"{prefix}{name}", metric, **options)

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Evaluate the images that choose the epoch."""
        self._evaluate(batch, f"val/{dataloader_idx}_" if dataloader_idx else "val/")

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Evaluate the test images, or the training images that come after them."""
        data: Any = getattr(self.trainer, "datamodule", None)
        second = "train/" if getattr(data, "score_train", False) else f"test/{dataloader_idx}_"
        self._evaluate(batch, second if dataloader_idx else "test/")

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Compute the logits (B, C) of the raw weights."""
        return self.model(batch[0])

    def example_inputs(self, data: Any, batch_size: int) -> tuple[Tensor]:
        """Return random images (B, 3, S, S) of the data's size."""
        return (torch.randn(batch_size, 3, data.image_size, data.image_size),)

    def build_param_groups(self) -> list[dict[str, Any]]:
        """Group the parameters of the model and of the loss, with timm's exemptions from decay."""
        trained = nn.ModuleList([self.model, self.loss])
        exempt: set[str] = getattr(self.model, "no_weight_decay", set)()
        return param_groups_weight_decay(trained, self.weight_decay, exempt)
