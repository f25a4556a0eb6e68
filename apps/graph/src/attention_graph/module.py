"""Training and scoring of a regressor of graphs, with the four slots of every mechanism."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from attention_core import Plain, SelfAttention
from attention_core.attach import select_layers
from experiment_kit.errors import UserError
from experiment_kit.optim import Constant, Schedule, decay_groups, scheduled
from experiment_kit.penalties import penalised
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import MeanAbsoluteError

from attention_graph.encodings import Batch
from attention_graph.models import Fidelity, Graphormer, Size


class GraphRegressor(LightningModule):
    r"""Graphormer whose attention has slots, trained by the absolute error.

    .. math:: \hat y = \mu + s f(G), \qquad \mathcal{L} =
        \tfrac{1}{s} \, \overline{|y - \hat y|} + \tfrac{1}{L} \sum_l \mathrm{penalty}_l

    with the mean :math:`\mu` and deviation s of the targets, 0 and 1 where the data leaves them as
    they are. They come from the data, and so do the rows of the tables of atoms and bonds. Errors
    are logged in the unit of the targets. `layers` says which layers the slots sit in; the others
    stay plain. `fidelity: released` keeps upstream's quirks, in the encodings too. `decay_all`
    decays biases, norms and coefficients like all else, as released.

    Raises ValueError for heads that do not divide the width, for layers that do not exist, for
    hops that have no matrix, and for a kernel; UserError for graphs that the network does not take.

    >>> module = GraphRegressor(64, 64, width=8, heads=2, depth=1, hidden=8)
    >>> module.model.head.out_features
    1
    """

    errors: Any

    def __init__(
        self,
        atom_rows: int,
        bond_rows: int,
        target_mean: float = 0.0,
        target_std: float = 1.0,
        width: int = 80,
        heads: int = 8,
        depth: int = 12,
        hidden: int = 80,
        input_dropout: float = 0.1,
        attention_dropout: float = 0.1,
        dropout: float = 0.1,
        distances: int = 40,
        degrees: int = 64,
        max_hops: int = 20,
        hop_rows: int = 40,
        fidelity: Fidelity = "right",
        filter: Callable[[int], nn.Module] = Plain,
        kernel: Callable[[int, int], nn.Module] | None = None,
        tokens: Callable[[int], nn.Module] | None = None,
        reparam: Callable[[int], nn.Module] | None = None,
        layers: str = ":",
        optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW,
        weight_decay: float = 0.01,
        decay_all: bool = False,
        schedule: Schedule | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()  # what the config says, not the objects made of it
        self.make_optimizer, self.weight_decay = optimizer, weight_decay
        self.decay_all, self.schedule = decay_all, schedule or Constant()
        self.mean, self.std = target_mean, target_std
        chosen = select_layers(layers, depth)
        if kernel is not None:
            raise ValueError(
                "model.kernel: Graphormer adds a bias of two atoms to the logits of a softmax, and "
                "other maps have none: leave it out"
            )

        def attention(layer: int) -> SelfAttention:
            if layer not in chosen:
                return SelfAttention(width, heads, dropout=attention_dropout)
            return SelfAttention(
                width, heads, filter, None, tokens, reparam, dropout=attention_dropout
            )

        rows = atom_rows, bond_rows, width, heads, depth, hidden, distances, degrees
        size = Size(*rows, max_hops, hop_rows)
        self.model: Any = Graphormer(size, attention, dropout, input_dropout, fidelity)
        stages = ("train", "val", "test")
        self.errors = nn.ModuleDict({f"of_{stage}": MeanAbsoluteError() for stage in stages})

    def forward(self, batch: Batch) -> Tensor:
        """Targets (B,)."""
        try:
            return self.mean + self.std * self.model(batch).float()
        except ValueError as error:  # of a bias that this data does not suit
            raise UserError(str(error)) from error

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The absolute error in units of the targets' deviation, and what the kernels add."""

        def loss() -> Tensor:
            found = self(batch)
            self.errors["of_train"].update(found.detach(), batch.y)
            return F.l1_loss(found, batch.y) / self.std

        total = penalised(self, loss)
        error, size = self.errors["of_train"], len(batch.y)
        self.log("train/mae", error, on_step=False, on_epoch=True, batch_size=size)
        return total

    def _evaluate(self, batch: Batch, stage: str) -> None:
        error = self.errors[f"of_{stage}"]
        error.update(self(batch), batch.y)
        self.log(f"{stage}/mae", error, prog_bar=True, batch_size=len(batch.y))

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Score the graphs that choose the epoch."""
        self._evaluate(batch, "val")

    def on_validation_epoch_end(self) -> None:
        """Log what chooses the epoch."""
        self.log("val/score", -self.errors["of_val"].compute())

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Score the test graphs."""
        self._evaluate(batch, "test")

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Targets (B,)."""
        return self(batch)

    def layers(self) -> Sequence[nn.Module]:
        """The modules whose outputs are tokens, for the spectral monitor."""
        return self.model.layers()

    def token_mask(self, batch: Batch) -> Tensor:
        """Which tokens are real, the virtual node among them, for the spectral monitor."""
        return F.pad(batch.mask, (1, 0), value=True)

    def configure_optimizers(self) -> Any:
        """The optimiser over parameters with and without decay, and the schedule."""
        groups = decay_groups(self.model, self.weight_decay)
        if self.decay_all:
            groups = [{**group, "weight_decay": self.weight_decay} for group in groups]
        optimizer = self.make_optimizer(groups)
        return [optimizer], [scheduled(self.schedule, optimizer, self.trainer)]
