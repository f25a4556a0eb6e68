"""`python -m attention_nlp.efficiency`: what the model of a config costs, without texts."""

from typing import Any

import torch
from experiment_kit.efficiency import Parts, main
from torch import Tensor, nn

from attention_nlp.__main__ import APP
from attention_nlp.data import LanguageData
from attention_nlp.module import LanguageModule
from attention_nlp.tasks import Task


class Answering(nn.Module):
    """A network and its task as one function of token ids (B, N)."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, ids: Tensor) -> Any:
        """What the task says of texts without padding."""
        # a mask of nothing would have transformers look at its values, which "meta" has not
        stock = hasattr(self.model, "base_model_prefix")
        mask: Any = None if stock else torch.ones_like(ids).bool()
        return self.task.predict(self.model, [ids, mask, torch.zeros_like(ids), ids])


def parts(module: LanguageModule, data: LanguageData) -> Parts:
    """The network of a module, and texts (B, N) of the greatest length."""
    high, length = data.vocab_size, data.max_length
    return Answering(module.model, module.task), lambda b: (torch.randint(high, (b, length)),)


if __name__ == "__main__":
    main(APP, parts)
