"""A Trainer for models with mechanisms."""

import transformers
from torch import nn

from attention_core.hosts.attach import trainable_parameters


class Trainer(transformers.Trainer):
    """Train as transformers does, without weight decay of the mechanisms that are attached.

    transformers decays every parameter that is no bias and in no norm. Decay moves a coefficient to
    zero, which is not where a mechanism is the identity: GFSA's weight of A starts at 1.
    """

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return the names of the parameters that the optimizer decays."""
        mechanisms = trainable_parameters(model)
        return [name for name in super().get_decay_parameter_names(model) if name not in mechanisms]
