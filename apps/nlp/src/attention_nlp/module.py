"""Train and score a language model, with the slots of every mechanism."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attention_core import Plain
from attention_core.hook_points import Position
from experiment_kit.optim import Constant, Schedule, decay_groups, scheduled
from experiment_kit.penalties import penalised
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from attention_nlp.models.backbones import build_backbone, list_token_modules
from attention_nlp.models.checkpoints import describe_weights_source
from attention_nlp.tasks import Batch, DatasetInfo, Task


class LanguageModule(LightningModule):
    r"""A network whose attention has slots, and its task.

    `num_labels`, `vocab_size`, `max_length`, `pad_token_id` and `eos_token_id` come from the data.
    `layers` selects layers of self-attention, an encoder's before a decoder's; the others stay
    plain.

    Raises the errors of `build_backbone`.

    >>> from attention_nlp.tasks import Classification
    >>> tiny = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    >>> module = LanguageModule(3, 11, 16, 0, options=tiny, task=Classification())
    >>> module.origin
    'random'
    """

    def __init__(
        self,
        num_labels: int,
        vocab_size: int,
        max_length: int,
        pad_token_id: int,
        eos_token_id: int = -1,
        *,
        task: Task,
        architecture: str = "bert",
        weights: str | None = None,
        options: dict[str, Any] | None = None,
        filter: Callable[[int], nn.Module] = Plain,
        kernel: Callable[[int, int], nn.Module] | None = None,
        tokens: Callable[[int], nn.Module] | None = None,
        reparam: Callable[[int], nn.Module] | None = None,
        layers: str = ":",
        position: Position = "residual",
        optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW,
        weight_decay: float = 0.0,
        decay_all: bool = False,
        schedule: Schedule | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["task"])  # what the config says, not what is made of it
        self.make_optimizer, self.weight_decay = optimizer, weight_decay
        self.decay_all, self.schedule = decay_all, schedule or Constant()
        self.architecture, self.origin = architecture, describe_weights_source(weights, task.head)
        info = DatasetInfo(num_labels, vocab_size, max_length, pad_token_id, eos_token_id)
        task.check_dataset(info)
        slots: dict[str, Any] = {"filter": filter, "kernel": kernel, "tokens": tokens}
        slots |= {"reparam": reparam, "layers": layers, "position": position}
        network = build_backbone(architecture, weights, task.head, options, info, slots)
        self.task, self.model = task, task.wrap_backbone(network, info)
        self.metrics: Any = nn.ModuleDict(
            {
                split: nn.ModuleDict(task.make_metrics(info))
                for split in ("val", "test", "mismatched")
            }
        )

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Compute the task's loss and the penalties of kernels."""
        return penalised(self, lambda: self.task.compute_loss(self.model, batch))

    def _evaluate(self, batch: Batch, split: str, prefix: str) -> None:
        metrics = self.metrics[split]
        self.task.update_metrics(metrics, self.model, batch)
        for name, metric in metrics.items():
            self.log(f"{prefix}{name}", metric, add_dataloader_idx=False)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Score a batch of the texts that select the epoch."""
        self._evaluate(batch, "val", "val/")

    def on_validation_epoch_end(self) -> None:
        """Log the score that selects the epoch."""
        self.log("val/score", self.task.compute_score(self.metrics["val"]), prog_bar=True)

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score a batch of the development set, or of that of other genres."""
        if dataloader_idx == 0:
            self._evaluate(batch, "test", "test/")
        else:
            self._evaluate(batch, "mismatched", "test/mismatched_")

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Compute predictions for a batch."""
        return self.task.predict(self.model, batch)

    def layers(self) -> Sequence[nn.Module]:
        """List the modules whose outputs are tokens, for the spectral monitor."""
        return list_token_modules(self.architecture, self.model)

    def token_mask(self, batch: Batch) -> Tensor:
        """Return the mask that is False for padding, for the spectral monitor."""
        return batch[1]

    def configure_optimizers(self) -> Any:
        """The optimiser over parameters with and without decay, and the schedule."""
        groups = decay_groups(self.model, self.weight_decay)
        if self.decay_all:
            groups = [{**group, "weight_decay": self.weight_decay} for group in groups]
        optimizer = self.make_optimizer(groups)
        return [optimizer], [scheduled(self.schedule, optimizer, self.trainer)]
