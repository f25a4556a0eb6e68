"""The label as a word that an encoder-decoder writes: "true" or "false"."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import BinaryAccuracy, BinaryF1Score

from attention_nlp.tasks.base import Batch, Facts, Task

IGNORED = -100


class GenerateLabel(Task):
    r"""One of two labels, learned and given as a word of T tokens.

    .. math:: \mathcal{L} = -\tfrac{1}{T} \sum_t \log p(w_t \mid w_{<t}, x)

    A batch has a fifth part beside ids, mask, types and the labels (B,): the token ids of the
    words of both labels (B, 2, T), padded with -100. `scoring` with `beams` decodes with a cache,
    as the released code does, and what is written must be the word of the label to its end: any
    other text counts as the other label, and so as wrong. With `likelihood` the likelier of the
    two words is the prediction, so that every text has one; that is a forward pass.

    Raises ValueError for less than one beam.

    Source: https://github.com/salesforce/CodeT5, run_gen.py

    >>> GenerateLabel().metrics(Facts(2, 10, 8, 0)).keys()
    dict_keys(['accuracy', 'f1', 'written'])
    """

    head = "seq2seq"
    labels = range(2, 3)

    def __init__(self, scoring: Literal["beams", "likelihood"] = "beams", beams: int = 10) -> None:
        super().__init__()
        if beams < 1:
            raise ValueError(f"model.task.beams must be at least 1, got {beams}")
        self.scoring, self.beams = scoring, beams

    def metrics(self, facts: Facts) -> dict[str, Metric]:
        """Accuracy, F1 of label 1, and the share of predictions that are a label."""
        return {"accuracy": BinaryAccuracy(), "f1": BinaryF1Score(), "written": MeanMetric()}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross-entropy of the tokens of the right words."""
        ids, mask, _, labels, words = batch
        asked = {"attention_mask": mask, "use_cache": False}
        return model(input_ids=ids, labels=_chosen(words, labels), **asked).loss

    def update(self, metrics: Mapping[str, Any], model: nn.Module, batch: Batch) -> None:
        """Compare what is written, or likelier, with the labels."""
        labels = batch[3]
        if self.scoring == "likelihood":
            is_word = F.one_hot(self.predict(model, batch).argmax(-1), 2).bool()
        else:
            is_word = self.written(model, batch)
        right = is_word.gather(1, labels.unsqueeze(1)).squeeze(1)
        predicted = torch.where(right, labels, 1 - labels)
        metrics["accuracy"].update(predicted, labels)
        metrics["f1"].update(predicted, labels)
        metrics["written"].update(is_word.any(-1).float())

    def written(self, model: Any, batch: Batch) -> Tensor:
        """Which words (B, 2) are what beam search writes."""
        ids, mask, *_, words = batch
        length, pad = words.shape[-1], model.config.pad_token_id
        texts = model.generate(
            input_ids=ids,
            attention_mask=mask,
            num_beams=self.beams,
            max_new_tokens=length,
            do_sample=False,
            use_cache=True,
        )
        texts = F.pad(texts[:, 1:], (0, length + 1 - texts.shape[1]), value=pad)  # less its start
        return (texts.unsqueeze(1) == words.masked_fill(words == IGNORED, pad)).all(-1)

    def score(self, metrics: Mapping[str, Any]) -> Tensor:
        """Accuracy, the share of exact matches."""
        return metrics["accuracy"].compute()

    def predict(self, model: Any, batch: Batch) -> Tensor:
        """Log-likelihoods (B, 2) of the words; the source is encoded once."""
        ids, mask, *_, words = batch
        asked = {"attention_mask": mask, "use_cache": False}
        asked["encoder_outputs"] = model.get_encoder()(input_ids=ids, attention_mask=mask)
        columns = [
            _likelihood(model(labels=word, **asked).logits, word)
            for word in words.transpose(0, 1).contiguous()
        ]
        return torch.stack(columns, dim=1)


def _chosen(words: Tensor, labels: Tensor) -> Tensor:
    return words[torch.arange(len(words), device=words.device), labels]  # (B, T)


def _likelihood(logits: Tensor, word: Tensor) -> Tensor:
    logits = logits.transpose(1, 2)  # (B, V, T)
    return -F.cross_entropy(logits, word, ignore_index=IGNORED, reduction="none").sum(1)
