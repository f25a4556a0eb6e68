"""Train and score a language model: loss, metrics, example inputs."""

from typing import Any

import torch
from attention_core.hosts.hook_points import Position
from experiment_kit.training.module import AttentionModule
from torch import Tensor, nn

from attention_nlp.models.backbones import build_backbone
from attention_nlp.models.checkpoints import describe_weights_source
from attention_nlp.tasks import Batch, Task, TextInfo
from attention_nlp.tasks.code import CodeClassifier


class LanguageModule(AttentionModule):
    """A language model whose attention has slots, and its task.

    Args:
        num_labels: Number of labels, from the data.
        vocab_size: Number of token ids, from the data.
        max_length: Tokens of a text, from the data.
        pad_token_id: Id that fills up a batch, from the data.
        eos_token_id: Id that ends a text, from the data; -1 is none.
        task: Head, loss and metrics.
        architecture: bert, roberta, albert, gpt2, bart, plbart, t5 or crammed.
        weights: Folder, hub id, run of pre-training, or minilm; null is random.
        options: Fields of the network's configuration, such as num_hidden_layers.
        position: Where `tokens` act.
    """

    def __init__(
        self,
        num_labels: int,
        vocab_size: int,
        max_length: int,
        pad_token_id: int,
        eos_token_id: int = -1,
        *,
        task: Task,
        architecture: str = "bert",
        weights: str | None = None,
        options: dict[str, Any] | None = None,
        position: Position = "residual",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.architecture = architecture
        self.weights_source = describe_weights_source(weights, task.head)
        info = TextInfo(num_labels, vocab_size, max_length, pad_token_id, eos_token_id)
        task.check_dataset(info)
        slots = self.slots | {"position": position}
        network = build_backbone(architecture, weights, task.head, options, info, slots)
        self.task, self.model = task, task.wrap_backbone(network, info)
        self.metrics = nn.ModuleDict(
            {prefix: nn.ModuleDict(task.make_metrics(info)) for prefix in ("val/", "test/")}
        )

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Compute the task's loss and the penalties of kernels."""
        return self.compute_training_loss(lambda: self.task.compute_loss(self.model, batch))

    def _score_batch(self, batch: Batch, prefix: str) -> None:
        metrics = self.choose_metrics(prefix)
        self.task.update_metrics(metrics, self.model, batch)
        for name, metric in metrics.items():
            self.log(f"{prefix}{name}", metric, add_dataloader_idx=False)

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score a batch of the texts that select the epoch."""
        self._score_batch(batch, f"val/{dataloader_idx}_" if dataloader_idx else "val/")

    def on_validation_epoch_end(self) -> None:
        """Log the score that selects the epoch."""
        self.log("val/score", self.task.compute_score(self.metrics["val/"]), prog_bar=True)

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score a batch of the development set, or of MNLI's second one."""
        data: Any = getattr(self.trainer, "datamodule", None)
        is_mnli = "mismatched" in getattr(data, "splits", {})
        second = "test/mismatched_" if is_mnli else f"test/{dataloader_idx}_"
        self._score_batch(batch, second if dataloader_idx else "test/")

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Compute predictions for a batch."""
        return self.task.predict(self.model, batch)

    def token_mask(self, batch: Batch) -> Tensor:
        """Return the mask that is False for padding, for the spectral monitor."""
        return batch[1]

    def example_inputs(self, data: Any, batch_size: int) -> tuple[Tensor, ...]:
        """Draw texts of the greatest length, to measure efficiency."""
        num_functions = getattr(self.model, "num_functions", 1)
        shape = (data.max_length,) if num_functions == 1 else (num_functions, data.max_length)
        return (torch.randint(data.vocab_size, (batch_size, *shape)),)

    def efficiency_network(self) -> nn.Module:
        """Return the network from token ids to logits."""
        return LogitsModel(self.model)


class LogitsModel(nn.Module):
    """Compute logits from ids (B, N), or (B, functions, N), without padding.

    A head for masked words decodes all of them, and a decoder that generates a label its first
    token.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Compute the logits."""
        model: Any = self.model
        ids = ids.flatten(0, -2)  # (B functions, N)
        if isinstance(model, CodeClassifier):
            vectors = _encode_last(model.encoder_model, ids)
            return model.head(vectors.reshape(-1, model.num_functions * vectors.shape[-1]))
        config = getattr(model, "config", None)
        if not getattr(config, "is_encoder_decoder", False):
            is_causal = getattr(config, "model_type", "") == "gpt2"
            return model(
                input_ids=ids, attention_mask=_causal_mask(ids) if is_causal else None
            ).logits
        if hasattr(model, "classification_head"):
            return model.classification_head(_encode_last(model.base_model, ids))
        return model(input_ids=ids, **_decoder_inputs(ids[:, :1])).logits


def _encode_last(encoder: Any, ids: Tensor) -> Tensor:
    # a decoder reads the source again
    inputs = _decoder_inputs(ids) if encoder.config.is_encoder_decoder else {}
    return encoder(input_ids=ids, **inputs).last_hidden_state[:, -1]


def _decoder_inputs(ids: Tensor) -> dict[str, Any]:
    mask = _causal_mask(ids)
    return {"decoder_input_ids": ids, "decoder_attention_mask": mask, "use_cache": False}


def _causal_mask(ids: Tensor) -> Tensor:
    # (B, 1, N, N): transformers reads the values of a mask (B, N), which device "meta" has not
    size = ids.shape[1]
    return torch.ones_like(ids).bool()[:, None, None].expand(-1, 1, size, -1).tril()
