"""Crammed BERT with a head, whose attention has slots.

Geiping and Goldstein 2023, https://arxiv.org/abs/2212.14034. Shapes: B texts of N tokens, D wide,
V words, C labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from attention_core import Plain, SelfAttention
from attention_core.attach import select_layers
from experiment_kit.errors import UserError
from torch import Tensor, nn

from attention_nlp.models import checkpoint
from attention_nlp.models.encoder import STD, Block, Crammed, Options
from attention_nlp.tasks.base import Facts

POOLED = 1024  # what the head for labels makes of the first token
DROPOUT = {"masked": 0.0, "labels": 0.1}  # as published: none in pre-training


class Output(NamedTuple):
    """What a head says, under the name that transformers gives it."""

    logits: Tensor


class _Headed(nn.Module):
    def __init__(self, base: Crammed) -> None:
        super().__init__()
        self.base_model = base

    def layers(self) -> Sequence[nn.Module]:
        """The modules that put out tokens, in order of depth."""
        return [self.base_model.embedding, *self.base_model.blocks]


class ForMasked(_Headed):
    """The decoder of pre-training: the embedding of the words again, without a bias.

    Only the `positions` (B, N) that are asked for are decoded, all of them where it is None.

    Shapes: ids (B, N) -> logits (M, V) of the M positions in their order, or (B, N, V).
    """

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Output:
        """Decode."""
        x = self.base_model(input_ids, attention_mask)
        x = x if positions is None else x[positions]
        return Output(F.linear(x, self.base_model.embedding.word.weight))


class ForLabels(_Headed):
    """The head of fine-tuning: first token, linear, tanh, dropout, linear; logits (B, C)."""

    def __init__(self, base: Crammed, width: int, labels: int, dropout: float) -> None:
        super().__init__(base)
        self.pool, self.classifier = nn.Linear(width, POOLED), nn.Linear(POOLED, labels)
        self.dropout = nn.Dropout(dropout)
        for linear in (self.pool, self.classifier):
            nn.init.normal_(linear.weight, std=STD)
            nn.init.zeros_(linear.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Output:
        """Classify."""
        first = self.base_model(input_ids, attention_mask)[:, 0]
        return Output(self.classifier(self.dropout(torch.tanh(self.pool(first)))))


def build(
    head: str,
    weights: str | None,
    options: Mapping[str, Any] | None,
    facts: Facts,
    slots: Mapping[str, Any],
) -> nn.Module:
    """Crammed BERT with the head `masked` or `labels`; `weights` is a checkpoint of a run here.

    `slots` are `filter`, `kernel`, `tokens`, `reparam`, `layers` and `position`, which is
    `attention` or `residual`. Of a checkpoint all but the head is loaded.

    Raises ValueError for another head, unknown options, a position or layers that it has not, and
    UserError for texts longer than its positions and for weights of another network.

    >>> facts = Facts(num_labels=3, vocab_size=11, max_length=16, pad=0)
    >>> tiny = {"depth": 2, "width": 8, "heads": 2, "hidden": 12}
    >>> model = build("labels", None, tiny, facts, {"filter": Plain, "layers": ":"})
    >>> model(torch.zeros(2, 5, dtype=torch.long)).logits.shape
    torch.Size([2, 3])
    """
    if head not in DROPOUT:
        raise ValueError(f"crammed has heads for {' and '.join(DROPOUT)}, and none for {head}")
    size = _options(options, facts)
    dropout = DROPOUT[head] if size.dropout is None else size.dropout
    base = Crammed(facts, size, _blocks(size, dropout, slots), dropout)
    if weights is not None:
        checkpoint.load(base, weights)
    if head == "masked":
        return ForMasked(base)
    return ForLabels(base, size.width, facts.num_labels, dropout)


def _options(options: Mapping[str, Any] | None, facts: Facts) -> Options:
    known = [field.name for field in fields(Options)]
    for name in options or {}:
        if name not in known:
            raise ValueError(f"model.options of crammed are {', '.join(known)}, got {name!r}")
    size = Options(**(options or {}))
    if facts.max_length > size.length:
        raise UserError(
            f"data.max_length {facts.max_length} is longer than the {size.length} positions of "
            "crammed (model.options.length)"
        )
    return size


def _blocks(size: Options, dropout: float, slots: Mapping[str, Any]) -> list[Block]:
    chosen = select_layers(slots["layers"], size.depth)
    tokens, position = slots.get("tokens"), slots.get("position", "attention")
    if tokens is not None and position not in ("attention", "residual"):
        raise ValueError(f"position must be attention or residual in crammed, got {position!r}")
    return [_block(size, dropout, slots if layer in chosen else {}) for layer in range(size.depth)]


def _block(size: Options, dropout: float, slots: Mapping[str, Any]) -> Block:
    tokens = slots.get("tokens")
    inside, behind = (tokens, None) if slots.get("position") != "residual" else (None, tokens)
    attention = SelfAttention(
        size.width,
        size.heads,
        slots.get("filter", Plain),
        slots.get("kernel"),
        inside,
        bias=False,
        dropout=dropout,
    )
    made = None if behind is None else behind(size.width)
    block = Block(attention, size.width, size.hidden, dropout, made)
    if (reparam := slots.get("reparam")) is not None:  # once the weights are drawn: it draws V
        values = slice(2 * size.width, 3 * size.width)
        reparam(size.width).tie(attention.qkv, attention.proj, values)
    return block
