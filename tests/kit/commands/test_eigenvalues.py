"""Shares of eigenvalues: of a model's own weights, and the maps that its filters receive."""

import pytest
import torch
from attention_core import GFSA, EigenSpectrum, SelfAttention, spectral
from attention_speech.data.base import SpeechBatch
from experiment_kit.commands import measure
from torch import nn

B, N, DIM, HEADS = 3, 7, 6, 2


class Stack(nn.Module):
    """Two layers of attention, one of them filtered, on tokens (B, N, D)."""

    def __init__(self, reparam=None):
        super().__init__()
        self.first = SelfAttention(DIM, HEADS, filter=GFSA, reparam=reparam)
        self.second = SelfAttention(DIM, HEADS, reparam=reparam)

    def predict_step(self, batch, batch_idx):
        return self.second(self.first(batch[0], batch[1]), batch[1])


def reference_shares(layer, x, mask):
    """Shares of one layer, from the whole (D, D) matrices of its heads and the maps written out."""
    q, k, _ = layer.qkv(x).double().unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    logits = (q @ k.mT * (DIM // HEADS) ** -0.5).masked_fill(~mask[:, None, None], -torch.inf)
    W_V, W_O = layer.qkv.weight[2 * DIM :].double().T, layer.proj.weight.double().T
    rows = [slice(h * DIM // HEADS, (h + 1) * DIM // HEADS) for h in range(HEADS)]
    H = torch.stack([torch.linalg.eigvals((W_V[:, r] @ W_O[r]).T) for r in rows])
    A = torch.linalg.eigvals(logits.softmax(-1))
    both = [spectral.dominating_eigenvalue_shares(H, A, count_zeros=z) for z in (True, False)]
    return torch.cat(both).tolist()


def batch():
    mask = torch.ones(B, N, dtype=torch.bool)
    mask[1, 4:] = False
    return [torch.randn(B, N, DIM), mask]


def test_shares_are_those_of_whole_matrices_before_the_filter():
    model, (x, mask) = Stack().train(), batch()
    with torch.no_grad():
        for layer in (model.first, model.second):
            layer.proj.weight.mul_(9)  # so that something dominates by far
        found = measure.eigenvalue_shares(model, [x, mask])
        assert model.training
        model.eval()
        expected = [reference_shares(model.first, x, mask)]
        expected.append(reference_shares(model.second, model.first(x, mask), mask))
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs)
        assert sum(mine[:3]) == sum(mine[3:]) == pytest.approx(1)


@pytest.mark.parametrize(("kind", "place"), [("smoothing", 0), ("sharpening", 1)])
def test_a_reparameterised_model_does_as_its_name_says(kind, place):
    model = Stack(lambda dim: EigenSpectrum(dim, kind, init="orthogonal"))
    with torch.no_grad():
        for layer in (model.first, model.second):
            layer.qkv.weight[: 2 * DIM] *= 6  # maps with eigenvalues below 0
            psi = layer.proj.get_parameter("parametrizations.weight.original")
            psi.copy_(torch.linspace(0.5, 1, DIM) * (1 if kind == "smoothing" else -1))
    for layer in measure.eigenvalue_shares(model, batch()):
        other = 1 - place
        assert layer[other] == 0
        assert layer[place] > 0.5
        assert layer[3:] == [float(kind == place) for kind in range(3)]  # as printed: no ties


def test_shares_of_several_batches_are_those_of_their_samples_together():
    model, (x, mask) = Stack(), batch()
    with torch.no_grad():
        model.first.proj.weight.mul_(9)
    whole = measure.measure_eigenvalues(model, [[x, mask]])
    whole_batch = SpeechBatch(x, *[mask] * 3, ["a"] * B, ["b"] * B)  # cut by its own method
    (few,) = measure.take_samples([whole_batch], 2)
    assert (type(few), len(few.texts)) == (SpeechBatch, 2)
    parts = measure.measure_eigenvalues(model, [[x[:1], mask[:1]], [x[1:], mask[1:]]])
    assert parts["metrics"] == pytest.approx(whole["metrics"])
    assert parts["samples"] == whole["samples"] == B
