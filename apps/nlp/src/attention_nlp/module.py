"""Training and scoring of a language model, with the four slots of every mechanism."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attention_core import Plain
from attention_core.hook_points import Position
from experiment_kit.optim import Constant, Schedule, decay_groups, scheduled
from experiment_kit.penalties import penalised
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from attention_nlp import backbones
from attention_nlp.tasks import Batch, Facts, Task
from attention_nlp.weights import origin


class LanguageModule(LightningModule):
    r"""A network whose attention has slots, and what it is asked.

    .. math:: \mathcal{L} = \mathrm{task} + \tfrac{1}{L} \sum_l \mathrm{penalty}_l

    with the penalty of kernels that have one. `num_labels`, `vocab_size`, `max_length`, `pad` and
    `eos` come from the data. `layers` says which layers of self-attention the slots sit in, an
    encoder's before a decoder's, `position` where `tokens` sit in them; the others stay plain.

    Raises what `backbones.build` does.

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
        pad: int,
        eos: int = -1,
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
        self.architecture, self.origin = architecture, origin(weights, task.head)
        facts = Facts(num_labels, vocab_size, max_length, pad, eos)
        task.check(facts)
        slots: dict[str, Any] = {"filter": filter, "kernel": kernel, "tokens": tokens}
        slots |= {"reparam": reparam, "layers": layers, "position": position}
        network = backbones.build(architecture, weights, task.head, options, facts, slots)
        self.task, self.model = task, task.wrap(network, facts)
        self.metrics: Any = nn.ModuleDict(
            {stage: nn.ModuleDict(task.metrics(facts)) for stage in ("val", "test", "mismatched")}
        )

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The task's loss, and what the kernels add."""
        return penalised(self, lambda: self.task.loss(self.model, batch))

    def _evaluate(self, batch: Batch, stage: str, prefix: str) -> None:
        metrics = self.metrics[stage]
        self.task.update(metrics, self.model, batch)
        for name, metric in metrics.items():
            self.log(f"{prefix}{name}", metric, add_dataloader_idx=False)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Score the texts that choose the epoch."""
        self._evaluate(batch, "val", "val/")

    def on_validation_epoch_end(self) -> None:
        """Log what chooses the epoch."""
        self.log("val/score", self.task.score(self.metrics["val"]), prog_bar=True)

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score the development set, and that of other genres where there is one."""
        if dataloader_idx == 0:
            self._evaluate(batch, "test", "test/")
        else:
            self._evaluate(batch, "mismatched", "test/mismatched_")

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """What the model says of a batch."""
        return self.task.predict(self.model, batch)

    def layers(self) -> Sequence[nn.Module]:
        """The modules whose outputs are tokens, for the spectral monitor."""
        return backbones.layers(self.architecture, self.model)

    def token_mask(self, batch: Batch) -> Tensor:
        """Which tokens are real, for the spectral monitor."""
        return batch[1]

    def configure_optimizers(self) -> Any:
        """The optimiser over parameters with and without decay, and the schedule."""
        groups = decay_groups(self.model, self.weight_decay)
        if self.decay_all:
            groups = [{**group, "weight_decay": self.weight_decay} for group in groups]
        optimizer = self.make_optimizer(groups)
        return [optimizer], [scheduled(self.schedule, optimizer, self.trainer)]
