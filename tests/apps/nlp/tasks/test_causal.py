"""Causal language modelling: how a text is cut, and what its perplexity is."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from attention_nlp.data import corpora
from attention_nlp.data.corpora import TextSpans, TokenStream, collate_spans, list_blocks
from attention_nlp.tasks import CausalLanguage, TextInfo
from attention_nlp.tasks.causal import token_nll
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

VOCABULARY, START = 11, 3


class Running(nn.Module):
    """Logits that depend on every token of the context: its embeddings' discounted sum."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.rows = nn.Parameter(torch.randn(VOCABULARY, VOCABULARY, generator=generator))

    def forward(self, input_ids, attention_mask, use_cache):
        state, states = torch.zeros(len(input_ids), VOCABULARY), []
        for token in input_ids.unbind(1):
            state = 0.7 * state + self.rows[token]
            states.append(state)
        return SimpleNamespace(logits=torch.stack(states, 1))


def reference_nll(context: list[int], token: int) -> float:
    """The cost of a token after a context, in Python's own floats."""
    rows = Running().rows.double().tolist()
    logits = [0.0] * VOCABULARY
    for earlier in context:
        logits = [0.7 * a + b for a, b in zip(logits, rows[earlier], strict=True)]
    return math.log(sum(math.exp(a) for a in logits)) - logits[token]


def score(spans: TextSpans, batch_size: int) -> dict[str, float]:
    task = CausalLanguage()
    metrics = task.make_metrics(TextInfo(1, VOCABULARY, 16, 0))
    with torch.no_grad():
        for batch in DataLoader(spans, batch_size, collate_fn=partial(collate_spans, 0)):
            task.update_metrics(metrics, Running(), batch)
    assert task.compute_score(metrics) == -metrics["perplexity"].compute()
    return {name: metric.compute().item() for name, metric in metrics.items()}


def random_stream(length: int) -> TokenStream:
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(VOCABULARY, (length,), generator=generator, dtype=torch.int32)
    return TokenStream(ids, torch.arange(length, dtype=torch.int32) % 3)


lengths = st.integers(2, 40)


@given(length=lengths, block=st.integers(2, 13), data=st.data(), batch_size=st.integers(1, 5))
def test_a_sliding_window_scores_every_token_once(length, block, data, batch_size):
    stride = data.draw(st.integers(1, block - 1))
    text = random_stream(length)
    ids, total = [START, *text.ids.tolist()], 0.0
    for place in range(1, length + 1):
        window = max(0, math.ceil((place + 1 - block) / stride))  # the first that reaches it
        context = ids[window * stride : place]
        assert len(context) >= min(place, block - stride)
        total += reference_nll(context, ids[place])
    spans = TextSpans(text.prepend(START), corpora.list_windows(length + 1, block, stride))
    found, words = score(spans, batch_size), int(text.num_words.sum())
    assert found["perplexity"] == pytest.approx(math.exp(total / length), rel=1e-5)
    assert found["word_perplexity"] == pytest.approx(math.exp(total / words), rel=1e-4)


@given(count=st.integers(1, 6), block=st.integers(2, 13), batch_size=st.integers(1, 4))
def test_released_perplexity_is_the_mean_over_blocks_that_see_no_other(count, block, batch_size):
    text = random_stream(count * block)
    means = []
    for start in range(0, count * block, block):
        ids = text.ids[start : start + block].tolist()
        costs = [reference_nll(ids[:place], ids[place]) for place in range(1, block)]
        means.append(sum(costs) / len(costs))
    found = score(TextSpans(text, list_blocks(count * block, block)), batch_size)
    assert found["perplexity"] == pytest.approx(math.exp(sum(means) / count), rel=1e-5)


def test_the_loss_is_the_mean_over_real_tokens_with_and_without_a_target() -> None:
    batch = collate_spans(0, [TextSpans(random_stream(7), list_blocks(7, 5))[i] for i in range(2)])
    ids = [batch[0][0].tolist(), batch[0][1, :2].tolist()]
    costs = [reference_nll(row[:place], row[place]) for row in ids for place in range(1, len(row))]
    task, model = CausalLanguage(), Running()
    expected = pytest.approx(sum(costs) / len(costs), rel=1e-5)
    for parts in (batch, batch[:3]):
        assert task.compute_loss(model, parts).item() == expected


def test_costs_of_half_precision_are_computed_in_single() -> None:
    logits = torch.randn(2, 5, 13).bfloat16()
    target = torch.randint(13, (2, 5))
    expected = -logits.float().log_softmax(-1)[:, :-1].gather(2, target[:, 1:, None]).squeeze(2)
    torch.testing.assert_close(token_nll(logits, target)[:, 1:], expected)
