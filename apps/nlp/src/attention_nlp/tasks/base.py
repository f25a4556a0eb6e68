"""What a model is asked: its head, its loss, its metrics.

Shapes: B texts of N tokens. A batch is a list of ids (B, N), mask (B, N), True where a token is
real, token types (B, N), and a target where there is one.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn
from torchmetrics import Metric

Batch = Sequence[Tensor]


class Facts(NamedTuple):
    """What a model must know of its data: labels, vocabulary, longest text, two special tokens.

    `eos` is -1 where the vocabulary has no end of sequence.
    """

    num_labels: int
    vocab_size: int
    max_length: int
    pad: int
    eos: int = -1


class Task(nn.Module, ABC):
    """What a model is asked; `head` names what stands on its backbone.

    `labels` are the numbers of labels that its data may have; 1 stands for a number or none.
    """

    head: ClassVar[str]
    labels: ClassVar[range] = range(2, sys.maxsize)

    def check(self, facts: Facts) -> None:
        """Raises ValueError where the data is for another task."""
        if facts.num_labels not in self.labels:
            raise ValueError(
                f"model.task {type(self).__name__} is not for this data, which has "
                f"{facts.num_labels if facts.num_labels > 1 else 'no'} labels to choose from"
            )

    def wrap(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Put what the task needs around a backbone; nothing by default."""
        return model

    @abstractmethod
    def metrics(self, facts: Facts) -> dict[str, Metric]:
        """New metrics by name, for one part of the data."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """What training lowers."""

    @abstractmethod
    def update(self, metrics: Mapping[str, Any], model: nn.Module, batch: Batch) -> None:
        """Add a batch to the metrics."""

    @abstractmethod
    def score(self, metrics: Mapping[str, Any]) -> Tensor:
        """What chooses the epoch, the higher the better."""

    @abstractmethod
    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        """What the model says of a batch."""


def forward(model: nn.Module, ids: Tensor, mask: Tensor, types: Tensor, **kwargs: Any) -> Any:
    """Call a backbone, without token types where it has none: GPT-2 would add the words' own."""
    if getattr(getattr(model, "config", None), "type_vocab_size", 1) > 1:
        kwargs["token_type_ids"] = types
    return model(input_ids=ids, attention_mask=mask, **kwargs)
