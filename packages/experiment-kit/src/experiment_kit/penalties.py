"""Old names of `experiment_kit.training.module`."""  # shim: issue 16, deleted at the end

from collections.abc import Callable
from typing import Any

from torch import Tensor

from experiment_kit.training.module import AttentionModule


def penalised(module: Any, loss: Callable[[], Tensor]) -> Tensor:
    """Call `AttentionModule.compute_training_loss`."""
    return AttentionModule.compute_training_loss(module, loss)
