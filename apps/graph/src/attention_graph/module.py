"""Training and evaluation of a graph regressor."""

from typing import Any

import torch.nn.functional as F
from attention_core.checks import check_probabilities, check_sizes
from experiment_kit.errors import UserError, convert_user_errors
from experiment_kit.training.module import AttentionModule
from torch import Tensor, nn
from torchmetrics import MeanAbsoluteError

from attention_graph.encodings.batch import Batch
from attention_graph.encodings.paths import Variant
from attention_graph.models.graphormer import Graphormer, GraphormerConfig, Version


class GraphRegressor(AttentionModule):
    r"""Graphormer, trained by the absolute error.

    .. math:: \hat y = \mu + s f(G), \qquad \mathcal{L} =
        \tfrac{1}{s} \, \overline{|y - \hat y|} + \tfrac{1}{L} \sum_l \mathrm{penalty}_l

    with the mean :math:`\mu` and deviation s of the targets, 0 and 1 if the data does not scale
    them. Errors are logged in the unit of the targets. A kernel is refused: it has no logits to
    add the bias of a pair to.

    Args:
        atom_rows: Rows of the table of atoms, from the data.
        bond_rows: Rows of the table of bonds, from the data.
        target_mean: Mean of the targets, from the data.
        target_std: Standard deviation of the targets, from the data.
        dim: Width.
        num_heads: Attention heads of a layer.
        num_layers: Layers.
        ffn_dim: Width of the MLP.
        input_dropout: Dropout of the embedding.
        attention_dropout: Dropout of the attention map.
        dropout: Dropout of both branches.
        distances: Rows of the table of distances; greater distances share the last one.
        degrees: Rows of the tables of degrees; greater degrees share the last one.
        max_hops: Bonds of a path that count.
        hop_rows: Rows of the table of hops, at least max_hops.
        variant: `corrected`, or `upstream` with the quirks of Graphormer's code.
        activation_dropout: Dropout inside the MLP; null is 0.
        version: Upstream's release, `v1` or `main`, whose network it is; null is v1.
    """

    maes: Any

    def __init__(
        self,
        atom_rows: int,
        bond_rows: int,
        target_mean: float = 0.0,
        target_std: float = 1.0,
        dim: int = 80,
        num_heads: int = 8,
        num_layers: int = 12,
        ffn_dim: int = 80,
        input_dropout: float = 0.1,
        attention_dropout: float = 0.1,
        dropout: float = 0.1,
        distances: int = 40,
        degrees: int = 64,
        max_hops: int = 20,
        hop_rows: int = 40,
        variant: Variant = "corrected",
        weight_decay: float = 0.01,
        activation_dropout: float | None = None,
        version: Version | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight_decay=weight_decay, **kwargs)
        check_sizes("model", dim=dim, num_heads=num_heads, ffn_dim=ffn_dim, num_layers=num_layers)
        check_sizes("model", distances=distances, degrees=degrees, hop_rows=hop_rows)
        inner = activation_dropout or 0.0
        dropouts = {"dropout": dropout, "input_dropout": input_dropout, "activation_dropout": inner}
        check_probabilities("model", attention_dropout=attention_dropout, **dropouts)
        self.mean, self.std = target_mean, target_std
        if self.slots["kernel"] is not None:
            text = "model.kernel: Graphormer adds a bias for each pair of atoms to the logits"
            raise ValueError(f"{text} of a softmax, and other kernels have no logits: leave it out")
        config = GraphormerConfig(
            atom_rows, bond_rows, dim, num_heads, num_layers, ffn_dim,
            distances, degrees, max_hops, hop_rows,
        )  # fmt: skip
        attention = self.attention_builder(num_layers, dim, num_heads, dropout=attention_dropout)
        self.model = Graphormer(
            config, attention, dropout, input_dropout, variant, inner, version or "v1"
        )
        prefixes = ("train/", "val/", "test/")
        self.metrics = nn.ModuleDict({prefix: MeanAbsoluteError() for prefix in prefixes})

    def forward(self, batch: Batch) -> Tensor:
        """Predict the targets (B,)."""
        if not isinstance(batch, Batch):
            raise UserError(f"{type(batch).__name__} is no Batch: see docs/own_data.md")
        try:
            with convert_user_errors(ValueError):  # a bias that cannot encode these graphs
                return self.mean + self.std * self.model(batch).float()
        except IndexError as error:
            if "out of range in self" not in str(error):  # as nn.Embedding says on a CPU
                raise
            text = "an id in x is data.atom_rows or more, or one in edge_attr data.bond_rows"
            raise UserError(f"{text} or more") from error

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Compute the absolute error in units of the targets' deviation, plus the penalties."""

        def compute_error() -> Tensor:
            predicted, target = self(batch), batch.read_targets()
            self.metrics["train/"].update(predicted.detach(), target)
            return F.l1_loss(predicted, target) / self.std

        loss = self.compute_training_loss(compute_error)
        mae, size = self.metrics["train/"], len(batch.y)
        self.log("train/mae", mae, on_step=False, on_epoch=True, batch_size=size)
        return loss

    def _evaluate(self, batch: Batch, prefix: str) -> None:
        mae = self.choose_metrics(prefix)
        mae.update(self(batch), batch.read_targets())
        options: dict[str, Any] = {"batch_size": len(batch.y), "add_dataloader_idx": False}
        self.log(f"{prefix}mae", mae, prog_bar=True, **options)

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Evaluate the graphs that choose the epoch."""
        self._evaluate(batch, f"val/{dataloader_idx}_" if dataloader_idx else "val/")

    def on_validation_epoch_end(self) -> None:
        """Log the score, whose maximum chooses the epoch."""
        self.log("val/score", -self.metrics["val/"].compute())

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Evaluate the test graphs."""
        self._evaluate(batch, f"test/{dataloader_idx}_" if dataloader_idx else "test/")

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Predict the targets (B,)."""
        return self(batch)

    def token_mask(self, batch: Batch) -> Tensor:
        """Return the valid tokens (B, N + 1), with the virtual node."""
        return F.pad(batch.mask, (1, 0), value=True)
