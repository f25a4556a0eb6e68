"""Crammed BERT: its network, its masks, its data on disk."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attention_core import GFSA, ContraNorm, EigenSpectrum, Plain
from attention_nlp.data.masking import Masked, batch, masked
from attention_nlp.models import crammed
from attention_nlp.tasks.base import Facts
from attention_nlp.tasks.masked import MaskedLanguage
from experiment_kit.errors import UserError
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

FACTS = Facts(num_labels=3, vocab_size=53, max_length=16, pad=0)
SLOTS = {"filter": Plain, "layers": ":"}
TINY = {"depth": 3, "width": 12, "heads": 3, "hidden": 10, "length": 17}


def reference(w: dict[str, Tensor], ids: Tensor, heads: int) -> Tensor:
    """The encoder as it is written down, head by head, for one text (N,)."""
    d = w["embedding.word.weight"].shape[1]
    norm = lambda x, name: F.layer_norm(x, (d,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)  # noqa: E731
    place = torch.zeros(len(ids), d, dtype=torch.float64)
    for i in range(len(ids)):
        for j in range(0, d, 2):
            angle = torch.tensor(i / 10000 ** (j / d), dtype=torch.float64)
            place[i, j], place[i, j + 1] = angle.sin(), angle.cos()
    x = norm(w["embedding.word.weight"][ids] + w["embedding.scale"] * place, "embedding.norm")
    depth = 0
    while (name := f"blocks.{depth}") + ".up.weight" in w:
        y = norm(x, f"{name}.norm1")
        q, k, v = (y @ part.T for part in w[f"{name}.attention.qkv.weight"].chunk(3))
        size, mixed = d // heads, []
        for h in range(heads):
            a, b, c = (part[:, h * size : (h + 1) * size] for part in (q, k, v))
            mixed.append(torch.softmax(a @ b.T / size**0.5, -1) @ c)
        x = x + torch.cat(mixed, -1) @ w[f"{name}.attention.proj.weight"].T
        u = norm(x, f"{name}.norm2") @ w[f"{name}.up.weight"].T
        half = u.shape[1] // 2
        x = x + (u[:, :half] * F.gelu(u[:, half:])) @ w[f"{name}.down.weight"].T
        depth += 1
    return norm(x, "norm")


def test_the_encoder_is_what_is_written_down() -> None:
    model = crammed.build("masked", None, TINY, FACTS, SLOTS).double().eval()
    for weight in model.parameters():  # norms that start as identities would hide a mistake
        nn.init.normal_(weight, std=0.5)
    base = model.base_model
    base.embedding.table = base.embedding.table.double()
    ids = torch.randint(53, (7,))
    found = base(ids[None], torch.ones(1, 7, dtype=torch.bool))[0]
    assert torch.allclose(found, reference(base.state_dict(), ids, 3), atol=1e-6)
    padded = torch.cat([ids, torch.zeros(4, dtype=torch.long)])[None]
    again = base(padded, torch.arange(11)[None] < 7)[0, :7]
    assert torch.allclose(again, found, atol=1e-10)


@pytest.mark.parametrize(("depth", "count"), [(16, 119_589_889), (32, 214_010_881)])
def test_the_published_sizes(depth: int, count: int) -> None:
    facts = Facts(num_labels=0, vocab_size=32768, max_length=128, pad=0)
    with torch.device("meta"):
        model = crammed.build("masked", None, {"depth": depth}, facts, SLOTS)
    assert sum(p.numel() for p in model.parameters()) == count


def test_weights_start_as_published() -> None:
    facts = FACTS._replace(vocab_size=997)
    model = crammed.build("masked", None, {**TINY, "width": 96, "hidden": 180}, facts, SLOTS)
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            assert abs(weight.std().item() - 0.02) < 0.002, name
    assert model.base_model.embedding.scale.item() == pytest.approx(96**-0.5)
    assert not model.base_model.embedding.word.weight[0].any()
    assert all("norm" in name for name, _ in model.named_parameters() if name.endswith("bias"))


def test_dropout_is_off_in_pre_training_and_on_in_fine_tuning() -> None:
    rates = {
        head: {m.p for m in model.modules() if isinstance(m, nn.Dropout)}
        | {block.attention.dropout for block in model.base_model.blocks}
        for head in ("masked", "labels")
        for model in [crammed.build(head, None, TINY, FACTS, SLOTS)]
    }
    assert rates == {"masked": {0.0}, "labels": {0.1}}


def test_slots_sit_in_the_layers_that_are_chosen() -> None:
    spectrum = lambda dim: EigenSpectrum(dim, kind="smoothing")  # noqa: E731
    slots = {"filter": GFSA, "layers": "1::2", "reparam": spectrum, "position": "residual"}
    model = crammed.build(
        "labels", None, TINY, FACTS, {**slots, "tokens": lambda d: ContraNorm(d, 0.1)}
    )
    kinds = [
        (
            type(block.attention.filter),
            type(block.tokens),
            hasattr(block.attention.proj, "parametrizations"),
        )
        for block in model.base_model.blocks
    ]
    plain = (Plain, type(None), False)
    assert kinds == [plain, (GFSA, ContraNorm, True), plain]
    V = model.base_model.blocks[1].attention.qkv.weight[24:]
    assert V.std() > 0.2  # He's, and not drawn over
    assert len(model.layers()) == 4


@pytest.mark.parametrize(
    ("head", "options", "slots", "sentence"),
    [
        ("causal", TINY, {}, "crammed has heads for masked and labels, and none for causal"),
        ("labels", {"deep": 3}, {}, "model.options of crammed are depth, .* got 'deep'"),
        ("labels", {**TINY, "hidden": 9}, {}, "hidden must be even, got 9"),
        ("labels", {**TINY, "length": 15}, {}, "max_length 16 is longer than the 15 positions"),
        (
            "labels",
            TINY,
            {"tokens": nn.Identity, "position": "norms"},
            "residual in crammed, got 'norms'",
        ),
        ("labels", TINY, {"layers": "5:"}, "names none of the 3 layers"),
    ],
)
def test_what_cannot_be_built_is_told(head, options, slots, sentence) -> None:
    with pytest.raises((ValueError, UserError), match=sentence):
        crammed.build(head, None, options, FACTS, SLOTS | slots)


@given(st.integers(4, 300), st.floats(0.01, 1.0), st.integers(0, 99))
def test_counts_of_masks_are_exact(length: int, share: float, seed: int) -> None:
    ids = np.arange(100, 100 + length)  # all distinct, none of the words that may be drawn
    changed, target = masked(ids, 7, 50, share, np.random.default_rng(seed))
    count, asked = round(share * length), target != -100
    assert asked.sum() == count
    assert (target[asked] == ids[asked]).all()
    assert (changed[~asked] == ids[~asked]).all()
    kept = (changed[asked] == ids[asked]).sum()
    assert kept == count - round(0.9 * count)
    drawn = changed[asked & (changed != ids)]
    assert (drawn == 7).sum() >= round(0.8 * count)
    assert ((drawn < 50) | (drawn == 7)).all()


def test_32_of_128_are_asked_for() -> None:
    changed, target = masked(np.full(128, 60), 7, 7, 0.25, np.random.default_rng(0))
    asked = target == 60
    counts = [(changed[asked] == 7).sum(), (changed[asked] < 7).sum(), (changed[asked] == 60).sum()]
    assert counts == [26, 3, 3]


def test_masked_words_alone_are_decoded_and_learned() -> None:
    model, task = crammed.build("masked", None, TINY, FACTS, SLOTS), MaskedLanguage()
    rows = [np.random.default_rng(i).integers(3, 53, 16) for i in range(5)]
    items = batch([Masked(rows, 4, 53, 0.25, seed=0)[i] for i in range(5)])
    ids, mask, _, target = items
    full = model(ids, mask).logits
    assert torch.allclose(task.logits(model, items), full[target != -100], atol=1e-6)
    assert torch.equal(task.predict(model, items), task.logits(model, items).argmax(-1))
    expected = F.cross_entropy(full.flatten(0, 1), target.flatten())
    assert torch.allclose(task.loss(model, items), expected, atol=1e-6)
    metrics = task.metrics(FACTS)
    task.update(metrics, model, items)
    assert metrics["perplexity"].compute() == pytest.approx(expected.exp().item(), rel=1e-5)
    assert task.score(metrics) == pytest.approx(-expected.item(), rel=1e-5)


class Dense(nn.Module):
    """A network that knows no positions, as those of transformers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: Tensor, attention_mask: Tensor):
        return self.inner(input_ids, attention_mask)


def test_other_networks_decode_everything() -> None:
    model, task = crammed.build("masked", None, TINY, FACTS, SLOTS), MaskedLanguage()
    items = batch([masked(np.arange(16), 4, 53, 0.5, np.random.default_rng(1))] * 2)
    assert torch.allclose(task.logits(Dense(model), items), task.logits(model, items), atol=1e-6)
