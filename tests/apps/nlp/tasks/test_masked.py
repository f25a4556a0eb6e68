"""Masked words: networks decode no others, or all of them, with the same result."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attention_nlp.data.packing import MaskedSequences, stack_sequences
from attention_nlp.models import crammed
from attention_nlp.tasks import MaskedLanguage
from torch import nn

from tests.apps.nlp.small import CRAMMED, SLOTS
from tests.apps.nlp.small import CRAMMED_INFO as INFO


def test_masked_words_alone_are_decoded_and_scored_by_any_network() -> None:
    model, task = crammed.build_crammed("masked", None, CRAMMED, INFO, SLOTS), MaskedLanguage()
    rows = [np.random.default_rng(i).integers(3, 53, 16) for i in range(5)]
    items = stack_sequences([MaskedSequences(rows, 4, 53, 0.25, seed=0)[i] for i in range(5)])
    ids, mask, _, target = items
    full = model(ids, mask).logits
    assert torch.allclose(task.compute_logits(model, items), full[target != -100], atol=1e-6)
    every = nn.Module()  # decodes every position, as networks of transformers do
    every.forward = lambda input_ids, attention_mask: model(input_ids, attention_mask)
    assert torch.allclose(task.compute_logits(every, items), full[target != -100], atol=1e-6)
    assert torch.equal(task.predict(model, items), task.compute_logits(model, items).argmax(-1))
    expected = F.cross_entropy(full.flatten(0, 1), target.flatten())
    assert torch.allclose(task.compute_loss(model, items), expected, atol=1e-6)
    metrics = task.make_metrics(INFO)
    task.update_metrics(metrics, model, items)
    assert metrics["perplexity"].compute() == pytest.approx(expected.exp().item(), rel=1e-5)
    assert task.compute_score(metrics) == pytest.approx(-expected.item(), rel=1e-5)
