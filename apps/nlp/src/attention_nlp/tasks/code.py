"""Classify functions of source code, or generate their label, as the scripts of CodeT5 do."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from attention_core.checks import check_probabilities, check_sizes
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import BinaryAccuracy, BinaryF1Score

from attention_nlp.tasks.base import IGNORED, Batch, Output, Task, TextInfo, call_backbone
from attention_nlp.tasks.labels import Classification


def encode_functions(encoder: nn.Module, ids: Tensor, valid_mask: Tensor, types: Tensor) -> Tensor:
    r"""Encode each function as one vector (B, D): the state of its first or its last token.

    GPT-2's first token sees only itself, so its last state is the vector. An encoder-decoder reads
    the source again in its decoder, shifted to the right, and the decoder's last state, at the end
    of sequence, is the vector:

    .. math:: v = h_{n-1}, \quad h = \mathrm{decoder}((s, x_0, \dots, x_{n-2}), \mathrm{encoder}(x))

    s is the configuration's `decoder_start_token_id`, or the last token if it has none, as in
    PLBART. Texts are padded on the right.

    Source: https://github.com/salesforce/CodeT5
    """
    config: Any = encoder.config
    last, rows = valid_mask.sum(1) - 1, torch.arange(len(ids), device=ids.device)
    if not config.is_encoder_decoder:
        states = call_backbone(encoder, ids, valid_mask, types).last_hidden_state  # (B, N, D)
        return states[rows, last] if config.model_type == "gpt2" else states[:, 0]
    start = getattr(config, "decoder_start_token_id", None)
    first = ids[rows, last] if start is None else torch.full_like(last, start)
    decoder = {
        "decoder_input_ids": torch.cat([first[:, None], ids[:, :-1]], dim=1),
        "decoder_attention_mask": valid_mask,
        "use_cache": False,
    }
    output = call_backbone(encoder, ids, valid_mask, types, **decoder)
    return output.last_hidden_state[rows, last]


class CodeClassifier(nn.Module):
    """A head on the vectors of `num_functions` functions, in consecutive rows of a batch.

    The vectors (B num_functions, D) are concatenated to (B, num_functions D). Rows at the end that
    make no whole sample are encoded and not classified: the monitor may cut a batch anywhere.
    """

    def __init__(self, encoder: Any, head: nn.Module, num_functions: int = 1) -> None:
        super().__init__()
        self.encoder_model, self.head, self.num_functions = encoder, head, num_functions
        self.config = encoder.config
        if hasattr(encoder, "pooler"):  # RoBERTa's, which is not used
            encoder.pooler = None

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Output:
        """Compute logits (B, C) from ids, mask and types (B num_functions, N)."""
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        vectors = encode_functions(self.encoder_model, input_ids, attention_mask, types)
        whole = len(vectors) // self.num_functions * self.num_functions
        samples = vectors[:whole].reshape(-1, self.num_functions * vectors.shape[-1])
        return Output(self.head(samples))


class Defect(Classification):
    r"""Predict if a function is faulty (1) or not (0); accuracy selects the epoch.

    .. math:: p = \mathrm{softmax}(W v + b)

    with the vector v (D) of :func:`encode_functions`. F1 is of the faulty functions.

    Source: https://github.com/microsoft/CodeXGLUE, Code-Code/Defect-detection
    """

    head = "encoder"

    def wrap_backbone(self, backbone: nn.Module, info: TextInfo) -> nn.Module:
        """Add the linear head."""
        config: Any = backbone.config
        return CodeClassifier(backbone, nn.Linear(config.hidden_size, info.num_labels))


class Clone(Classification):
    r"""Predict if two functions do the same (1) or not (0); F1 selects the epoch.

    .. math:: p = \mathrm{softmax}(W_2 \tanh(W_1 [v_1, v_2] + b_1) + b_2)

    with the vectors v (D) of :func:`encode_functions`, W1 (D, 2D) and W2 (2, D). A batch of B pairs
    has ids, mask and types (2B, N), the two functions of a pair in consecutive rows, and target
    (B,).

    Args:
        dropout: Dropout before each product: 0 in CodeT5 and GFSA, 0.1 in CodeXGLUE.

    Source: https://github.com/microsoft/CodeXGLUE, Code-Code/Clone-detection-BigCloneBench
    """

    head = "encoder"

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__("f1")
        check_probabilities("model.task", dropout=dropout)
        self.dropout = dropout

    def wrap_backbone(self, backbone: nn.Module, info: TextInfo) -> nn.Module:
        """Add the head of two layers."""
        config: Any = backbone.config
        dim, dropout = config.hidden_size, nn.Dropout(self.dropout)
        inner, outer = nn.Linear(2 * dim, dim), nn.Linear(dim, info.num_labels)
        head = nn.Sequential(dropout, inner, nn.Tanh(), dropout, outer)
        return CodeClassifier(backbone, head, num_functions=2)


class GenerateLabel(Task):
    r"""Generate one of two labels as a word of T tokens.

    .. math:: \mathcal{L} = -\tfrac{1}{T} \sum_t \log p(w_t \mid w_{<t}, x)

    A batch holds, behind ids, mask, types and labels (B,), the token ids of the words of both
    labels (B, 2, T), padded with -100.

    Args:
        scoring: `beams` decodes as the released code does, and any text but the exact word of the
            label is wrong; `likelihood` predicts the likelier word, by a forward pass.
        beams: Width of the beam.

    Source: https://github.com/salesforce/CodeT5, run_gen.py
    """

    head = "seq2seq"
    num_labels = range(2, 3)

    def __init__(self, scoring: Literal["beams", "likelihood"] = "beams", beams: int = 10) -> None:
        super().__init__()
        check_sizes("model.task", beams=beams)
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
