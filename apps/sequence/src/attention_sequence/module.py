"""Training and scoring of a sequence classifier, with the slots of every mechanism."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from attention_core.checks import check_probabilities, check_sizes
from experiment_kit.errors import UserError, convert_user_errors
from experiment_kit.training.module import AttentionModule
from torch import Tensor, nn
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from attention_sequence.models import BuildAttention, Encoder, NetworkSize, SeriesClassifier

Batch = Sequence[Tensor]  # x (B, N, F), or ids (B, N) or (B, 2, N); mask without F; label (B,)


def break_ties(accuracy: Tensor, loss: Tensor, samples: int) -> Tensor:
    r"""Return the accuracy minus less than half a sample, the more the higher the loss.

    .. math:: \mathrm{accuracy} - \frac{1}{2n} \frac{\mathrm{loss}}{1 + \mathrm{loss}}

    Epochs of equal accuracy, frequent on a small validation set, are thus ordered by their loss.

    >>> break_ties(torch.tensor(1.0), torch.tensor(1.0), samples=4)
    tensor(0.9375)
    """
    return accuracy - loss / (1 + loss) / (2 * samples)


def bind_length(kernel: Callable[..., nn.Module] | None, length: int) -> Any:
    """Pass the length of the longest sequence to a factory of kernels that has such an argument."""
    # the parser passes a class as an argument of the partial that builds it
    candidates = (*getattr(kernel, "args", ()), getattr(kernel, "func", None), kernel)
    signatures = [inspect.signature(item) for item in candidates if callable(item)]
    lengths = [found for s in signatures if (found := s.parameters.get("length"))]
    if kernel is None or not lengths:
        return kernel
    given, default = getattr(kernel, "keywords", {}).get("length"), lengths[0].default
    if given not in (None, default, length):
        raise ValueError(f"a kernel's length is that of the data, {length}: leave out {given}")
    return partial(kernel, length=length)


def split_batch(batch: Batch) -> Batch:
    """Return sequences, mask and labels; UserError for a batch of another form."""
    found = [x for x in batch if isinstance(x, Tensor)]  # a dict has names
    if len(found) != 3 or found[2].ndim != 1 or found[2].is_floating_point():
        got = ", ".join(f"{tuple(x.shape)} of {x.dtype}" for x in found) or type(batch).__name__
        raise UserError(f"a batch is series or ids, mask, labels (B,) as whole numbers; got {got}")
    return [found[0], found[1], found[2].long()]


def compute_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Compute the mean over the samples; UserError for a label out of range."""
    with convert_user_errors(IndexError, prefix=f"labels are 0 to {logits.shape[1] - 1}: "):
        return F.cross_entropy(logits, label)


class SequenceClassifier(AttentionModule):
    """A classifier of sequences whose attention has slots, trained with cross-entropy.

    Args:
        num_features: Features of a step or number of ids, from the data.
        num_classes: Number of classes, from the data.
        max_length: Steps of a sequence, from the data.
        dim: Width.
        num_heads: Attention heads of a layer.
        num_layers: Layers.
        ffn_dim: Width of the MLP.
        dropout: Dropout of the embedding and of both branches.
        attention_dropout: Dropout of the attention map.
        mask: Attention ignores padding; false as the papers' code does for time series.
        network: Class of the network, from `Encoder`; null is that of UEA's experiments.
        float32_attention: Attention in single precision where the rest is in half, as the papers'
            code does for the Long Range Arena; null is false.
    """

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        max_length: int,
        dim: int = 512,
        num_heads: int = 8,
        num_layers: int = 2,
        ffn_dim: int = 2048,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        mask: bool = True,
        network: Callable[[NetworkSize, BuildAttention, bool], Encoder] | None = None,
        float32_attention: bool | None = None,
        optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.RAdam,
        **kwargs: Any,
    ) -> None:
        super().__init__(optimizer=optimizer, **kwargs)
        check_sizes("model", max_length=max_length, dim=dim, num_heads=num_heads, ffn_dim=ffn_dim)
        check_sizes("model", num_layers=num_layers)
        check_probabilities("model", dropout=dropout, attention_dropout=attention_dropout)
        self.slots["kernel"] = bind_length(self.slots["kernel"], max_length)
        options = {"dropout": attention_dropout, "float32": bool(float32_attention)}
        attention = self.attention_builder(num_layers, dim, num_heads, **options)
        size = NetworkSize(num_features, num_classes, max_length, dim, ffn_dim, num_layers, dropout)
        self.model = (network or SeriesClassifier)(size, attention, mask)
        self.metrics = nn.ModuleDict()
        for prefix in ("val/", "test/"):
            accuracy: Any = MulticlassAccuracy(num_classes, average="micro")
            self.metrics[prefix] = nn.ModuleDict({"loss": MeanMetric(), "accuracy": accuracy})

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return logits (B, C)."""
        x = x.to(self.dtype) if x.is_floating_point() else x.long()
        # a kernel that this data does not suit, or an id that is not below num_features
        with convert_user_errors(ValueError), convert_user_errors(IndexError, prefix="token ids: "):
            return self.model(x, mask)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the cross-entropy plus the penalties of the kernels."""
        x, mask, label = split_batch(batch)
        return self.compute_training_loss(lambda: compute_cross_entropy(self(x, mask), label))

    def _update_metrics(self, batch: Batch, prefix: str) -> None:
        x, mask, label = split_batch(batch)
        logits, metrics = self(x, mask).float(), self.choose_metrics(prefix)
        metrics["loss"].update(compute_cross_entropy(logits, label), len(x))
        metrics["accuracy"].update(logits, label)
        for name, metric in metrics.items():
            options = {"prog_bar": name == "accuracy", "add_dataloader_idx": False}
            self.log(f"{prefix}{name}", metric, **options)

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score the samples that choose the epoch."""
        self._update_metrics(batch, f"val/{dataloader_idx}_" if dataloader_idx else "val/")

    def on_validation_epoch_end(self) -> None:
        """Log the score that chooses the epoch."""
        loss, accuracy = self.metrics["val/"].values()
        samples = int(loss.weight)  # that were scored: a stream has no length
        self.log("val/score", break_ties(accuracy.compute(), loss.compute(), samples))

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score the test set."""
        self._update_metrics(batch, f"test/{dataloader_idx}_" if dataloader_idx else "test/")

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Return logits (B, C)."""
        x, mask, *_ = batch
        return self(x, mask)

    def token_mask(self, batch: Batch) -> Tensor:
        """Return the valid steps (B, N); of pairs (2B, N), each first before its second."""
        return batch[1].flatten(0, -2)

    def example_inputs(self, data: Any, batch_size: int) -> tuple[Tensor, Tensor]:
        """Return sequences of the greatest length without padding, and their mask."""
        return self.model.example_inputs(data.num_features, data.max_length, batch_size)
