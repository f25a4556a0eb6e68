"""Crammed BERT: its network, its first weights, and checkpoints of its runs."""

import pytest
import torch
import torch.nn.functional as F
from attention_core import GFSA, ContraNorm, EigenSpectrum, Plain
from attention_nlp.models import checkpoints, crammed
from attention_nlp.tasks.base import TextInfo
from experiment_kit.errors import UserError
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from tests.apps.nlp.small import CRAMMED, SLOTS
from tests.apps.nlp.small import CRAMMED_INFO as INFO


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
    model = crammed.build_crammed("masked", None, CRAMMED, INFO, SLOTS).double().eval()
    for weight in model.parameters():  # norms that start as identities would hide a mistake
        nn.init.normal_(weight, std=0.5)
    base = model.base_model
    base.embedding.table = base.embedding.table.double()
    ids = torch.randint(53, (7,))
    found = base(ids[None], torch.ones(1, 7, dtype=torch.bool))[0]
    assert torch.allclose(found, reference(base.state_dict(), ids, 3), atol=1e-6)
    padded = torch.cat([ids, torch.zeros(4, dtype=torch.long)])[None]
    assert torch.allclose(base(padded, torch.arange(11)[None] < 7)[0, :7], found, atol=1e-10)


@pytest.mark.parametrize(("depth", "count"), [(16, 119_589_889), (32, 214_010_881)])
def test_the_published_sizes(depth: int, count: int) -> None:
    info = TextInfo(num_labels=0, vocab_size=32768, max_length=128, pad_token_id=0)
    with torch.device("meta"):
        model = crammed.build_crammed("masked", None, {"num_layers": depth}, info, SLOTS)
    assert sum(p.numel() for p in model.parameters()) == count


def test_weights_start_as_published() -> None:
    options = {**CRAMMED, "dim": 96, "ffn_dim": 180}
    model = crammed.build_crammed("masked", None, options, INFO._replace(vocab_size=997), SLOTS)
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            assert abs(weight.std().item() - 0.02) < 0.002, name
    assert model.base_model.embedding.scale.item() == pytest.approx(96**-0.5)
    assert not model.base_model.embedding.word.weight[0].any()
    assert all("norm" in name for name, _ in model.named_parameters() if name.endswith("bias"))


def test_slots_are_filled_in_the_chosen_layers() -> None:
    spectrum = lambda dim: EigenSpectrum(dim, kind="smoothing")  # noqa: E731
    slots = {"filter": GFSA, "layers": "1::2", "reparam": spectrum, "position": "residual"}
    slots["tokens"] = lambda dim: ContraNorm(dim, 0.1)
    blocks = crammed.build_crammed("labels", None, CRAMMED, INFO, slots).base_model.blocks
    assert [type(block.attention.filter) for block in blocks] == [Plain, GFSA, Plain]
    assert [type(block.tokens) for block in blocks] == [type(None), ContraNorm, type(None)]
    assert [is_parametrized(block.attention.proj) for block in blocks] == [False, True, False]
    QK, V = blocks[1].attention.qkv.weight.split([24, 12])
    assert V.std() > 0.2  # He's, and not drawn over
    assert QK.std() < 0.03


@pytest.mark.parametrize(("head", "options", "slots", "sentence"), [
    ("causal", CRAMMED, {}, "crammed has heads for masked and labels, not for causal"),
    ("labels", {"deep": 3}, {}, "model.options of crammed are num_layers, .* got 'deep'"),
    ("labels", {**CRAMMED, "ffn_dim": 9}, {}, "ffn_dim must be an even number .*, got 9"),
    ("labels", {**CRAMMED, "num_positions": 15}, {}, "16 is longer than the 15 positions"),
    ("labels", CRAMMED, {"tokens": nn.Identity, "position": "norms"}, "got 'norms'"),
    ("labels", CRAMMED, {"layers": "5:"}, "names none of the 3 layers"),
])  # fmt: skip
def test_what_cannot_be_built_is_reported(head, options, slots, sentence) -> None:
    with pytest.raises((ValueError, UserError), match=sentence):
        crammed.build_crammed(head, None, options, INFO, SLOTS | slots)


def test_fine_tuning_starts_where_pre_training_ended(tmp_path) -> None:
    trained = crammed.build_crammed("masked", None, CRAMMED, INFO, SLOTS)
    state = {f"model.{name}": weight for name, weight in trained.state_dict().items()}
    torch.save({"state_dict": state}, tmp_path / "best.ckpt")
    tuned = crammed.build_crammed("labels", str(tmp_path / "best.ckpt"), CRAMMED, INFO, SLOTS)
    for name, weight in trained.base_model.state_dict().items():
        assert torch.equal(tuned.base_model.state_dict()[name], weight)


@pytest.mark.parametrize(("saved", "sentence"), [
    (None, r"best\.ckpt does not exist"),
    (b"no archive", "is no readable checkpoint"),
    ({"state_dict": {}}, 'is of another network: Missing key.* "embedding.scale"'),
])  # fmt: skip
def test_weights_that_cannot_be_loaded_are_reported(saved, sentence, tmp_path) -> None:
    path = tmp_path / "best.ckpt"
    if isinstance(saved, bytes):
        path.write_bytes(saved)
    elif saved is not None:
        torch.save(saved, path)
        with pytest.raises(UserError, match="holds no tokenizer"):
            checkpoints.load_run_tokenizer(str(path))
    with pytest.raises(UserError, match=sentence):
        crammed.build_crammed("labels", str(path), CRAMMED, INFO, SLOTS)
