"""A Trainer for models with mechanisms."""

import transformers
from torch import nn

from attention_core.hosts.attach import trainable_parameters


class Trainer(transformers.Trainer):
    """Train as transformers does, without decay of mechanisms, whose start is not zero."""

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return the names of the parameters that the optimizer decays."""
        mechanisms = trainable_parameters(model)
        return [name for name in super().get_decay_parameter_names(model) if name not in mechanisms]
