"""The interface of a task: its head, its loss and its metrics.

Shapes: B texts of N tokens. A batch is a list of ids (B, N), a mask (B, N) that is False for
padding, token types (B, N), and a target where there is one.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn
from torchmetrics import Metric

Batch = Sequence[Tensor]
IGNORED = -100  # in a target: this token is not scored


class TextInfo(NamedTuple):
    """Properties of a data set that a model needs; `eos_token_id` is -1 if there is none."""

    num_labels: int
    vocab_size: int
    max_length: int
    pad_token_id: int
    eos_token_id: int = -1


class Task(nn.Module, ABC):
    """The head, loss and metrics of a model; `head` is a key of `backbones.HEADS`.

    `num_labels` are the numbers of labels that its data may have: 0 for none, 1 for a number.
    """

    head: ClassVar[str]
    num_labels: ClassVar[range] = range(2, sys.maxsize)

    def check_dataset(self, info: TextInfo) -> None:
        """Raise ValueError if the data is for another task."""
        if info.num_labels not in self.num_labels:
            raise ValueError(
                f"model.task {type(self).__name__} does not fit this data, which has "
                f"{info.num_labels if info.num_labels > 1 else 'no'} labels to choose from"
            )

    def wrap_backbone(self, backbone: nn.Module, info: TextInfo) -> nn.Module:
        """Add a head of this task to a backbone that has none."""
        return backbone

    @abstractmethod
    def make_metrics(self, info: TextInfo) -> dict[str, Metric]:
        """Make new metrics by name, for one split of the data."""

    @abstractmethod
    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute the training loss."""

    @abstractmethod
    def update_metrics(self, metrics: Mapping[str, Any], model: nn.Module, batch: Batch) -> None:
        """Add a batch to the metrics."""

    @abstractmethod
    def compute_score(self, metrics: Mapping[str, Any]) -> Tensor:
        """Compute the score that selects the best epoch; higher is better."""

    @abstractmethod
    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute predictions for a batch."""


class Output(NamedTuple):
    """The output of a head, under the name that transformers gives it."""

    logits: Tensor


def call_backbone(
    model: nn.Module, ids: Tensor, valid_mask: Tensor, types: Tensor, **kwargs: Any
) -> Any:
    """Call a backbone, without token types if it has none: GPT-2 would look them up as words."""
    if getattr(getattr(model, "config", None), "type_vocab_size", 1) > 1:
        kwargs["token_type_ids"] = types
    return model(input_ids=ids, attention_mask=valid_mask, **kwargs)
