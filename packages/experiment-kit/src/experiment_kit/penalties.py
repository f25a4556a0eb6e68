"""What the kernels of a model add to its loss, and to its log."""

from collections.abc import Callable

import torch
from attention_core import penalties
from lightning.pytorch import LightningModule
from torch import Tensor


def penalised(module: LightningModule, loss: Callable[[], Tensor]) -> Tensor:
    r"""Return a loss with the mean of the penalties of the kernels that ran for it; log both.

    .. math:: \mathcal{L} + \tfrac{1}{L} \sum_l \mathrm{penalty}_l

    Logged are `train/loss`, the sum, and `train/penalty` where a kernel has one (AGF's).

    >>> penalised(LightningModule(), lambda: torch.tensor(0.5))
    tensor(0.5000)
    """
    with penalties(module) as terms:
        total = loss()
    if terms:
        penalty = torch.stack(terms).mean()
        module.log("train/penalty", penalty)
        total = total + penalty
    module.log("train/loss", total, prog_bar=True)
    return total
