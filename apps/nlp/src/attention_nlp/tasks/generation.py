"""Generate the label as a word with an encoder-decoder: "true" or "false"."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import BinaryAccuracy, BinaryF1Score

from attention_nlp.tasks.base import IGNORED, Batch, Task, TextInfo


class GenerateLabel(Task):
    r"""Generate one of two labels as a word of T tokens.

    .. math:: \mathcal{L} = -\tfrac{1}{T} \sum_t \log p(w_t \mid w_{<t}, x)

    A batch holds, behind ids, mask, types and labels (B,), the token ids of the words of both
    labels (B, 2, T), padded with -100. `scoring` with `beams` decodes with a cache, as the released
    code does; the output must be exactly the word of the label, and any other text counts as the
    other label, that is, as wrong. With `likelihood` the likelier of the two words is the
    prediction, so that every text has one; that is a forward pass.

    Raises ValueError for less than one beam.

    Source: https://github.com/salesforce/CodeT5, run_gen.py
    """

    head = "seq2seq"
    num_labels = range(2, 3)

    def __init__(self, scoring: Literal["beams", "likelihood"] = "beams", beams: int = 10) -> None:
        super().__init__()
        if beams < 1:
            raise ValueError(f"model.task.beams must be at least 1, got {beams}")
        self.scoring, self.beams = scoring, beams

    def make_metrics(self, info: TextInfo) -> dict[str, Metric]:
        """Make accuracy, F1 of label 1, and the fraction of predictions that are a label."""
        return {"accuracy": BinaryAccuracy(), "f1": BinaryF1Score(), "written": MeanMetric()}

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute the cross-entropy of the tokens of the correct words."""
        ids, valid_mask, _, labels, words = batch
        target = words[torch.arange(len(words), device=words.device), labels]  # (B, T)
        return model(input_ids=ids, labels=target, attention_mask=valid_mask, use_cache=False).loss

    def update_metrics(self, metrics: Mapping[str, Any], model: nn.Module, batch: Batch) -> None:
        """Compare the generated or likelier words with the labels."""
        labels = batch[3]
        if self.scoring == "likelihood":
            is_word = F.one_hot(self.predict(model, batch).argmax(-1), 2).bool()
        else:
            is_word = self.exact_matches(model, batch)
        is_right = is_word.gather(1, labels.unsqueeze(1)).squeeze(1)
        predicted = torch.where(is_right, labels, 1 - labels)
        metrics["accuracy"].update(predicted, labels)
        metrics["f1"].update(predicted, labels)
        metrics["written"].update(is_word.any(-1).float())

    def exact_matches(self, model: Any, batch: Batch) -> Tensor:
        """Compare the output of beam search with both words; True (B, 2) where they are equal."""
        ids, valid_mask, *_, words = batch
        length, pad = words.shape[-1], model.config.pad_token_id
        texts = model.generate(
            input_ids=ids,
            attention_mask=valid_mask,
            num_beams=self.beams,
            max_new_tokens=length,
            do_sample=False,
            use_cache=True,
        )
        texts = texts[:, 1:]  # without its start token
        texts = F.pad(texts, (0, length - texts.shape[1]), value=pad)  # (B, T)
        return (texts.unsqueeze(1) == words.masked_fill(words == IGNORED, pad)).all(-1)

    def compute_score(self, metrics: Mapping[str, Any]) -> Tensor:
        """Compute the accuracy, the fraction of exact matches."""
        return metrics["accuracy"].compute()

    def predict(self, model: Any, batch: Batch) -> Tensor:
        """Compute the log-likelihoods (B, 2) of the words; the source is encoded once."""
        ids, valid_mask, *_, words = batch
        source = model.get_encoder()(input_ids=ids, attention_mask=valid_mask)
        columns = []
        for word in words.transpose(0, 1).contiguous():  # (B, T)
            logits = model(
                labels=word, attention_mask=valid_mask, use_cache=False, encoder_outputs=source
            ).logits.transpose(1, 2)  # (B, V, T)
            nll = F.cross_entropy(logits, word, ignore_index=IGNORED, reduction="none")
            columns.append(-nll.sum(1))
        return torch.stack(columns, dim=1)
