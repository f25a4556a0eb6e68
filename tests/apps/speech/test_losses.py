"""The losses, against torch and speechbrain."""

import pytest
import torch
import torch.nn.functional as F
from attention_speech.losses import ctc_loss, label_smoothed_kl
from hypothesis import given
from hypothesis import strategies as st
from speechbrain.nnet import losses as speechbrain_losses


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=3))
def test_ctc_is_the_loss_of_each_utterance_by_torch(sizes: list[tuple[int, int]]) -> None:
    lengths, token_lengths = (torch.tensor(part) for part in zip(*sizes, strict=True))
    logits = torch.randn(len(sizes), 9, 6, dtype=torch.double)
    tokens = torch.randint(1, 6, (len(sizes), 4))
    total = 0.0
    for i, (n, u) in enumerate(sizes):
        counts = torch.tensor(n), torch.tensor(u)
        one = F.ctc_loss(logits[i, :n].log_softmax(-1), tokens[i, :u], *counts, reduction="sum")
        total += one.item() if one.isfinite() else 0.0
    found = ctc_loss(logits, lengths, tokens, token_lengths)
    assert found.item() == pytest.approx(total / len(sizes), rel=1e-4, abs=1e-5)
    arguments = logits.log_softmax(-1), tokens, lengths / 9, token_lengths / 4, 0
    theirs = speechbrain_losses.ctc_loss(*arguments, reduction="batchmean")
    assert found.item() == pytest.approx(theirs.item(), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_kl_is_that_of_the_smoothed_targets(smoothing: float) -> None:
    targets = torch.tensor([[4, 1, 2, 0], [3, 2, 0, 0]])
    log_probs = torch.randn(2, 4, 5).log_softmax(-1)
    smooth = torch.full((2, 4, 5), smoothing / 4).scatter(2, targets[..., None], 1 - smoothing)
    terms = F.kl_div(log_probs, smooth, reduction="none").sum(-1)
    found = label_smoothed_kl(log_probs, targets, smoothing)
    torch.testing.assert_close(found, terms[targets != 0].sum() / 2)
    if smoothing:
        options = {"label_smoothing": smoothing, "reduction": "batchmean"}
        theirs = speechbrain_losses.kldiv_loss(log_probs, targets, **options)
        torch.testing.assert_close(found, theirs)
