"""The LightningModule of all apps: slots, penalties, optimizer groups, schedule, monitor."""

import copy
import re
from abc import ABC
from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from attention_core import Plain, SelfAttention, attach, penalties
from attention_core.checks import check_nonnegative
from attention_core.filters import dropout_on_H, share_dropout
from attention_core.hosts.selection import select_layers
from attention_core.kernels.common import connect_layers
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import Metric

from experiment_kit.errors import UserError
from experiment_kit.parsing import save_plain_hyperparameters
from experiment_kit.training import lightning_patches, optim


class AttentionModule(LightningModule, ABC):
    r"""A model whose attention has slots, trained on a loss plus the penalties of its kernels.

    .. math:: \mathcal{L} = \mathrm{loss} + \tfrac{1}{L} \sum_l \mathrm{penalty}_l

    A subclass passes its other arguments on, and gives its own default by naming an argument:

        class Classifier(AttentionModule):
            def __init__(self, num_classes: int, weight_decay: float = 0.05, **kwargs: Any):
                super().__init__(weight_decay=weight_decay, **kwargs)
                self.model = self.attach_slots(MyTransformer(num_classes))

    It must define `training_step` (which returns `self.compute_training_loss(...)`), the steps of
    validation, test and prediction, `token_mask` if some tokens of a batch are padding,
    `example_inputs`, and `build_param_groups` if the trained network is neither `self.model` nor,
    without that, the whole module.

    Args:
        filter: Class or function of num_heads that makes a function of the attention map.
        kernel: Class or function of dim and num_heads that makes the map; null is softmax.
        tokens: Class or function of dim that makes a function of tokens; null is none.
        reparam: Class or function of dim that makes the spectrum of the values; null is none.
        layers: Layers that receive the mechanisms: a slice, as "1::2", an index, or 0,2 for two.
        dropout_mask: `shared` drops the same entries in all applications of A in a filter, on every
            device; null does so on a CPU in float32 alone, and needs less memory elsewhere;
            `filtered` drops entries of the filtered map instead.
        optimizer: Class of the optimizer and its arguments.
        weight_decay: Decay of matrices; that of the optimizer, if it is given.
        decay_norm_and_bias: Decay everything, not matrices alone.
        schedule: Learning rate by step; null is constant.
    """

    model: Any
    metrics: Any

    def __init__(
        self,
        *,
        filter: Callable[[int], nn.Module] = Plain,
        kernel: Callable[[int, int], nn.Module] | None = None,
        tokens: Callable[[int], nn.Module] | None = None,
        reparam: Callable[[int], nn.Module] | None = None,
        layers: str | int | list[int] = ":",
        dropout_mask: Literal["shared", "filtered"] | None = None,
        optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW,
        weight_decay: float = 0.0,
        decay_norm_and_bias: bool = False,
        schedule: optim.Schedule | None = None,
    ) -> None:
        super().__init__()
        check_nonnegative("model", weight_decay=weight_decay)
        optim.check_optimizer(optimizer, weight_decay)
        save_plain_hyperparameters(self)
        if re.fullmatch(r"-?\d+(, *-?\d+)*", str(layers)):  # an option gives a text
            layers = [int(index) for index in str(layers).split(",")]
        self.slots: dict[str, Any] = {"filter": filter, "kernel": kernel, "tokens": tokens}
        self.slots |= {"reparam": reparam, "layers": layers}
        if dropout_mask is not None:
            change = share_dropout if dropout_mask == "shared" else dropout_on_H
            self.slots["filter"] = lambda num_heads: change(filter(num_heads))
        self.build_optimizer, self.weight_decay = optimizer, weight_decay
        self.decay_norm_and_bias, self.schedule = decay_norm_and_bias, schedule
        self.learning_rate: float | None = None  # set by Tuner.lr_find, else that of the optimizer

    def _apply(self, *args: Any, **options: Any) -> Any:
        """Keep metrics in single precision: in half, a sum ends at 256 times what is added."""
        super()._apply(*args, **options)
        self._widen_metrics()
        return self

    def _widen_metrics(self, *_: Any) -> None:
        for part in self.modules():
            if isinstance(part, Metric) and part.dtype.itemsize < 4:
                part._apply(lambda x: x.float() if x.is_floating_point() else x)

    # Lightning makes a metric half again as it logs it
    on_validation_batch_start = on_test_batch_start = _widen_metrics  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Share the factories, which refer to the parser, and so to trainer and data."""
        memo |= {id(factory): factory for factory in (self.build_optimizer, *self.slots.values())}
        new = memo[id(self)] = type(self).__new__(type(self))
        vars(new).update(copy.deepcopy(self.__getstate__(), memo))
        return new

    def attach_slots(self, network: nn.Module, **options: Any) -> nn.Module:
        """Attach Plain to all layers, so that each map is monitored, and the slots to `layers`."""
        attach(network)
        return attach(network, **self.slots, **options)

    def attention_builder(
        self, num_layers: int, dim: int, num_heads: int, **options: Any
    ) -> Callable[[int], SelfAttention]:
        """Return a function that builds the attention of a layer, with slots if it is selected."""
        slots = dict(self.slots)
        selected = select_layers(slots.pop("layers"), num_layers)
        kernels: list[Any] = []

        def build_attention(layer: int) -> SelfAttention:
            chosen = slots if layer in selected else {}
            attention = SelfAttention(dim, num_heads, **chosen, **options)
            kernels.append(attention.kernel)
            connect_layers(kernels[-2:])
            return attention

        return build_attention

    def compute_training_loss(self, loss: Callable[[], Tensor]) -> Tensor:
        """Return `loss()` plus the mean penalty of the kernels that ran for it; log both.

        Logs `train/loss`, the sum, and `train/penalty` if a kernel has one (AGF's).
        """
        with penalties(self) as terms:
            total = loss()
        if terms:
            penalty = torch.stack(terms).mean()
            self.log("train/penalty", penalty)
            total = total + penalty
        self.log("train/loss", total, prog_bar=True)
        return total

    def build_param_groups(self) -> list[dict[str, Any]]:
        """Return the parameter groups with and without weight decay, in this order."""
        return optim.param_groups_weight_decay(getattr(self, "model", self), self.weight_decay)

    def configure_optimizers(self) -> Any:
        """Build the optimizer over the parameter groups, and its schedule."""
        groups = self.build_param_groups()
        if self.decay_norm_and_bias:
            groups = [{**group, "weight_decay": self.weight_decay} for group in groups]
        if self.learning_rate is not None:
            groups = [{**group, "lr": self.learning_rate} for group in groups]
        optimizer = optim.build_optimizer(self.build_optimizer, groups)
        trained = {p for group in optimizer.param_groups for p in group["params"]}
        for name, p in self.named_parameters():
            if p.requires_grad and p not in trained:
                text = "is in no group of build_param_groups: put it into self.model, or freeze it"
                raise UserError(f"{name} would not be trained: it {text}")
        schedule = self.schedule or optim.ConstantSchedule()
        return [optimizer], [optim.build_lr_scheduler(schedule, optimizer, self.trainer)]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on within an epoch where it stopped, in a trainer without our callbacks too."""
        if self._trainer is not None:
            self.trainer.precision_plugin.convert_module(self)  # else float64 goes through float32
            lightning_patches.RestoreLoops().on_load_checkpoint(self.trainer, self, checkpoint)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Log the learning rate of the first group of parameters."""
        self.log("train/lr", optimizer.param_groups[0]["lr"])

    def choose_metrics(self, prefix: str) -> Any:
        """Return `self.metrics` of a loader by the prefix of its scores, those of test for more."""
        if prefix not in self.metrics:
            new = self.metrics[prefix] = copy.deepcopy(self.metrics["test/"])
            new.apply(lambda part: part.reset() if isinstance(part, Metric) else None)
            self._metric_attributes = None  # Lightning's, by which `log` knows them
        return self.metrics[prefix]

    def token_mask(self, batch: Any) -> Tensor | None:
        """Return the valid tokens (B, N) of a batch; None if all are valid."""
        return None

    def example_inputs(self, data: Any, batch_size: int) -> tuple[Tensor, ...]:
        """Return random inputs of `efficiency_network`, in the shapes of the data module's."""
        raise UserError(f"{type(self).__name__} has no example inputs to measure efficiency with")

    def efficiency_network(self) -> nn.Module:
        """Return the network whose efficiency is measured."""
        return getattr(self, "model", self)
