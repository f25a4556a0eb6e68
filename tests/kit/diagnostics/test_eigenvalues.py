"""What is counted of a trained model: its own weights, and the maps that its filters see."""

import json

import pytest
import torch
from attention_core import GFSA, EigenSpectrum, Host, SelfAttention, attach, spectral
from experiment_kit import eigenvalues
from experiment_kit.eigenvalues import main, projections, shares, spectrum
from torch import nn

from tests.apps.tiny import arguments, fit

B, N, DIM, HEADS = 3, 7, 6, 2


class Stack(nn.Module):
    """Two layers of attention, one of them filtered, on tokens (B, N, D)."""

    def __init__(self, reparam=None):
        super().__init__()
        self.first = SelfAttention(DIM, HEADS, filter=GFSA, reparam=reparam)
        self.second = SelfAttention(DIM, HEADS, reparam=reparam)

    def predict_step(self, batch, batch_idx):
        return self.second(self.first(batch[0], batch[1]), batch[1])


def literal(layer, x, mask):
    """Shares of one layer, from the whole (D, D) matrices of its heads and the maps written out."""
    q, k, _ = layer.qkv(x).double().unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    logits = (q @ k.mT * (DIM // HEADS) ** -0.5).masked_fill(~mask[:, None, None], -torch.inf)
    W_V, W_O = layer.qkv.weight[2 * DIM :].double().T, layer.proj.weight.double().T
    rows = [slice(h * DIM // HEADS, (h + 1) * DIM // HEADS) for h in range(HEADS)]
    H = torch.stack([torch.linalg.eigvals((W_V[:, r] @ W_O[r]).T) for r in rows])
    A = torch.linalg.eigvals(logits.softmax(-1))
    return spectral.dominating_eigenvalue_shares(H, A).tolist()


def batch():
    mask = torch.ones(B, N, dtype=torch.bool)
    mask[1, 4:] = False
    return [torch.randn(B, N, DIM), mask]


def test_shares_are_those_of_whole_matrices_before_the_filter():
    model, (x, mask) = Stack().train(), batch()
    with torch.no_grad():
        for layer in (model.first, model.second):
            layer.proj.weight.mul_(9)  # so that something dominates by far
        found = shares(model, [x, mask])
        assert model.training
        model.eval()
        expected = [literal(model.first, x, mask)]
        expected.append(literal(model.second, model.first(x, mask), mask))
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs)
        assert sum(mine) == pytest.approx(1)


@pytest.mark.parametrize(("kind", "place"), [("smoothing", 0), ("sharpening", 1)])
def test_a_reparameterised_model_does_as_its_name_says(kind, place):
    model = Stack(lambda dim: EigenSpectrum(dim, kind, init="orthogonal"))
    with torch.no_grad():
        for layer in (model.first, model.second):
            layer.qkv.weight[: 2 * DIM] *= 6  # maps with eigenvalues below 0
            psi = layer.proj.get_parameter("parametrizations.weight.original")
            psi.copy_(torch.linspace(0.5, 1, DIM) * (1 if kind == "smoothing" else -1))
    for layer in shares(model, batch()):
        other = 1 - place
        assert layer[other] == 0
        assert layer[place] > 0.5


def test_the_spectrum_of_a_head_has_zeros_where_it_is_narrower_than_the_tokens():
    value, output = torch.randn(DIM, 5), torch.randn(5, DIM)
    found = spectrum(value, output, HEADS)
    assert found.shape == (HEADS, DIM // HEADS + 1)
    assert found[:, -1].tolist() == [0, 0]
    whole = spectrum(torch.randn(5, 5), torch.randn(5, 5), heads=1)
    assert whole.shape == (1, 5)


def test_projections_of_timms_attention_are_found():
    attention = pytest.importorskip("timm.layers.attention").Attention(DIM, num_heads=HEADS)
    model = attach(nn.Sequential(attention), GFSA)
    (found,) = projections(model)
    assert found.heads == HEADS
    assert found.filter is attention.filter
    assert torch.equal(found.value, attention.qkv.weight[2 * DIM :])
    assert found.output is attention.proj.weight


class Own(nn.Module):
    """Says itself where its projections are."""

    def __init__(self):
        super().__init__()
        self.filter = GFSA(1)
        self.inner = nn.Linear(N, N)

    def spectra(self):
        yield eigenvalues.Projections(self.filter, 2 * torch.eye(4), torch.eye(4), 1)

    def predict_step(self, batch, batch_idx):
        A = torch.eye(N).roll(1, 0) * 0.5 + 0.5 * torch.eye(N)
        return self.filter(Host(lambda v: A @ v, batch[0]), batch[0])


def test_a_model_may_say_itself_where_its_projections_are():
    assert shares(Own(), [torch.randn(1, 1, N, 3)]) == [[1, 0, 0]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, fit(folder, "--trainer.max_epochs=1")


def test_the_shares_of_a_trained_model_lie_in_the_folder_of_its_run(trained, capsys):
    folder, run = trained
    extra = ["--trainer.max_epochs=1", "--samples=3"]
    main(["sequence", *arguments(folder, *extra)])
    report = json.loads((run.folder / "eigenvalues.json").read_text())
    assert (report["samples"], len(report["layers"])) == (3, 2)
    names = ["smoothing_share", "sharpening_share", "tied_share"]
    assert [*report["metrics"]] == names
    assert sum(report["metrics"].values()) == pytest.approx(1)
    for name in names:
        mean = sum(layer[name] for layer in report["layers"]) / 2
        assert report["metrics"][name] == pytest.approx(mean)
    assert "eigenvalues.json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["sequence", "--seed_everything=5"], "is not trained: run fit"),
        (["sequence", "--samples=0"], "--samples must be at least 1"),
        (["nothing"], "No module named 'attention_nothing'"),
        (["sequence", "--samples=few"], "invalid int value: 'few'"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(trained, capsys, given, sentence):
    app, *extra = given
    with pytest.raises(SystemExit) as left:
        main([app, *arguments(trained[0], *extra)])
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
