"""Mechanisms travel in files of their own: every mechanism, every kind of host, and bad files."""

import copy
import json
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
import transformers
from attention_core import AGF, GFSA, AttnScale, EigenSpectrum, attach, detach, trainable_parameters
from attention_core.filters import dropout_on_H
from attention_core.hosts.saving import describe_part, load_mechanism, save_mechanism
from attention_core.tokens import ContraNorm, FeatScale, LayerScale
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close

from tests.core.kernels.cases import DIM, EVERY, H, N
from tests.hosts.helpers import OwnAttention, draw_weights, filtered_modules, filters, randomize
from tests.hosts.timm_models import SIZE, build
from tests.hosts.transformers import models

BAND = partial(EigenSpectrum, kind="band-pass", eps=0.3)
CONTRAST = partial(ContraNorm, scale=0.3, positive=True, learnable=True)
CHANGES = {
    "filter": {"make_filter": partial(GFSA, K=5, learn=("w0", "wK")), "layers": "1:"},
    "dropout": {"make_filter": lambda heads: dropout_on_H(GFSA(heads))},
    "kernel": {"kernel": partial(AGF, K=3, gamma=0.1), "layers": [0, 2]},
    "kernel and filter": {"kernel": AGF, "make_filter": AttnScale},
    "attention": {"tokens": FeatScale},
    "branches": {"tokens": partial(LayerScale, init=0.2), "position": "branches", "layers": "1:"},
    "norms": {"tokens": CONTRAST, "position": "norms", "layers": "2:5"},
    "reparam": {"reparam": partial(EigenSpectrum, kind="sharpening")},
    "band": {"reparam": BAND, "make_filter": GFSA, "layers": ":2"},
}


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2, 3, SIZE, SIZE)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_model_of_the_same_weights_gives_the_same_output(change, x, tmp_path):
    stock = draw_weights(build(), 0.3, 0)
    ours = attach(copy.deepcopy(stock), **change)
    for name, weight in ours.named_parameters():
        if name not in dict(stock.named_parameters()):
            nn.init.normal_(weight, std=0.3)
    save_mechanism(ours, tmp_path)
    again = load_mechanism(stock, tmp_path)
    assert torch.equal(again(x), ours(x))
    assert [{*vars(f)} for f in filters(again)] == [{*vars(f)} for f in filters(ours)]
    assert list(again.state_dict()) == list(ours.state_dict())
    assert trainable_parameters(again).keys() == trainable_parameters(ours).keys()


def test_several_mechanisms_and_files_of_a_few_kilobytes(x, tmp_path):
    ours = attach(build(), tokens=FeatScale)
    attach(attach(ours, AttnScale, ":1"), GFSA, "1:")
    draw_weights(ours, 0.3, 0)
    save_mechanism(ours, tmp_path)
    save_mechanism(ours, tmp_path)  # over the files of the first
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 8000
    assert torch.equal(load_mechanism(detach(copy.deepcopy(ours)), tmp_path)(x), ours(x))


def test_a_folder_of_the_hub_has_a_card_and_is_loaded(x, tmp_path, monkeypatch):
    ours = draw_weights(attach(build(), partial(GFSA, K=5), tokens=FeatScale), 0.3, 0)
    ours.config = SimpleNamespace(name_or_path="timm/vit")
    save_mechanism(ours, saved := tmp_path / "saved")
    card = huggingface_hub.ModelCard.load(saved / "README.md")
    assert card.data.base_model == "timm/vit"
    values = " ".join(f"{w:.4g}" for w in filters(ours)[1].wK)
    shown = ("# GFSA and", "$$H = w_0 I +", "(K=5,", f"| 1 | filter.wK | {values}", "| 2 | tok")
    assert all(text in card.content for text in shown)
    ours.config.name_or_path = str(saved)  # a hub refuses it
    save_mechanism(ours, saved)
    assert huggingface_hub.ModelCard.load(saved / "README.md").data.base_model is None
    (saved / "README.md").write_text("mine")
    save_mechanism(ours, saved)
    assert (saved / "README.md").read_text() == "mine"
    uploaded = partial(shutil.copytree, saved, tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: uploaded())
    assert torch.equal(load_mechanism(detach(copy.deepcopy(ours)), "someone/gfsa-vit")(x), ours(x))


def test_files_in_which_fixed_coefficients_were_parameters_load(x, tmp_path):
    old, stock = draw_weights(attach(build(), GFSA), 0.3, 0), draw_weights(build(), 0.3, 0)
    for filter in filters(old):
        for name in ("w0", "w1"):
            fixed = torch.rand_like(filter._buffers.pop(name))
            filter.register_parameter(name, nn.Parameter(fixed, requires_grad=False))
    save_mechanism(old, tmp_path)
    body = {k: t for k, t in old.state_dict().items() if "filter" not in k.split(".")}
    stock.load_state_dict(body)
    checkpoint = attach(copy.deepcopy(stock), GFSA)
    checkpoint.load_state_dict(old.state_dict())
    for again in (load_mechanism(stock, tmp_path), checkpoint):
        assert torch.equal(again(x), old(x))
        assert len(trainable_parameters(again)) == len(filters(again))


def test_classes_that_where_names_and_another_head(tmp_path):
    parts = (OwnAttention(), nn.MultiheadAttention(12, 2), OwnAttention())
    ours = draw_weights(nn.Sequential(*parts), 0.3, 0).eval()
    attach(ours, partial(GFSA, K=2))
    attach(ours, GFSA, "1:", where=OwnAttention)
    randomize(ours)
    save_mechanism(ours, tmp_path)
    again = load_mechanism(detach(copy.deepcopy(ours)), tmp_path)
    assert list(filtered_modules(again)) == ["1", "2"]
    x = torch.randn(2, 5, 12)
    assert torch.equal(again[2](x), ours[2](x))
    assert torch.equal(again[1](x, x, x)[0], ours[1](x, x, x)[0])
    with pytest.raises(ValueError, match="of 2 layers, this model of 1 by this where="):
        load_mechanism(detach(copy.deepcopy(ours)), tmp_path, where=nn.MultiheadAttention)
    save_mechanism(ours[2:], tmp_path)
    renamed = nn.Sequential(type("Renamed", (OwnAttention,), {})())
    load_mechanism(renamed, tmp_path, where="Renamed")
    assert torch.equal(filters(renamed)[0].wK, filters(ours)[1].wK)
    body = randomize(attach(models.build("bert"), GFSA))
    save_mechanism(body, tmp_path / "body")
    task = models.hf.BertForSequenceClassification(copy.deepcopy(models.FAMILIES["bert"].config))
    load_mechanism(task, tmp_path / "body")
    for mine, theirs in zip(filters(task), filters(body), strict=True):
        assert torch.equal(mine.wK.double(), theirs.wK)


@pytest.mark.parametrize("case", EVERY, ids=[case.name for case in EVERY])
def test_every_kernel_is_made_again_from_its_description(case):
    kernel = case.make(DIM, H, N)
    args = json.loads(json.dumps(describe_part(kernel, "kernel")["init_args"]))
    again = type(kernel)(DIM, H, **args)
    assert repr(again) == repr(kernel)
    ours, theirs = again.state_dict(), kernel.state_dict()
    assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in theirs.items()}
    again.load_state_dict(theirs)
    q, k, v, tokens = (torch.randn(2, H, N, DIM // H) for _ in range(4))
    tokens = torch.randn(2, N, DIM)
    torch.manual_seed(0)
    expected = kernel.eval()(q, k, tokens)
    torch.manual_seed(0)
    assert_close(again.eval()(q, k, tokens) @ v, expected @ v)


def test_trainable_parameters_are_those_that_learn_after_all_is_frozen():
    model = attach(build(), partial(GFSA, learn=("wK",)), layers="2:")
    attach(model, reparam=BAND, layers=":1")
    model.requires_grad_(False)
    assert list(trainable_parameters(copy.deepcopy(model))) == [
        "blocks.0.attn.proj.parametrizations.weight.original",
        "blocks.0.attn.proj.parametrizations.weight.0.eps",
        "blocks.2.attn.filter.wK",
    ]
    assert not trainable_parameters(detach(model))


def describe(change):
    def spoil(folder):
        file = folder / "mechanism.json"
        described = json.loads(file.read_text())
        change(described["groups"][0])
        file.write_text(json.dumps(described))

    return spoil


SPOILED = {
    "has no mechanism.json: give a folder": lambda folder: (folder / "mechanism.json").unlink(),
    "model: JSONDecodeError: Exp": lambda folder: (folder / "mechanism.json").write_text(""),
    "which is no filter or": describe(lambda g: g["filter"].update(class_path="json.dumps")),
    "of this model: TypeError": describe(lambda g: g["filter"]["init_args"].update(Q=3)),
    "names layer 9, and the model has 3": describe(lambda group: group.update(layers=[0, 1, 2, 9])),
    "lacks weights of what it": describe(lambda g: g.update(layers=[0, 1])),
}


@pytest.mark.parametrize(("reason", "spoil"), SPOILED.items(), ids=SPOILED)
def test_bad_files_are_one_sentence_and_change_nothing(reason, spoil, x, tmp_path):
    save_mechanism(attach(build(), GFSA), tmp_path)
    spoil(tmp_path)
    stock = build()
    before = stock(x)
    with pytest.raises(ValueError, match=reason):
        load_mechanism(stock, tmp_path)
    assert not filtered_modules(stock)
    assert torch.equal(stock(x), before)


def test_a_save_that_breaks_off_leaves_the_files_as_they_were(tmp_path, monkeypatch):
    save_mechanism(attach(build(), GFSA), tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    monkeypatch.setattr(Path, "write_text", lambda file, *_, **__: file.write_bytes(b"") or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_mechanism(attach(build(), AttnScale), tmp_path)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_class_of_a_stranger_runs_only_where_it_is_trusted(tmp_path, stranger):
    save_mechanism(attach(build(), GFSA), tmp_path)
    file = tmp_path / "mechanism.json"
    file.write_text(file.read_text().replace("attention_core.GFSA", stranger.name))
    with pytest.raises(ValueError, match=rf"allow it by trust=\['{stranger.name}'\]"):
        load_mechanism(build(), tmp_path)
    assert not stranger.has_run
    model = load_mechanism(build(), tmp_path, trust=[stranger.name])
    assert stranger.has_run
    assert type(filters(model)[0]).__name__ == "X"


def test_what_cannot_be_saved_or_does_not_fit_is_refused(tmp_path):
    bounded, meta = attach(build(), GFSA), attach(build(), GFSA).to("meta")
    nn.utils.parametrize.register_parametrization(filters(bounded)[0], "wK", nn.Tanh())
    assert len(trainable_parameters(bounded)) == 3
    body = {"__init__": lambda self, heads, secret=3: GFSA.__init__(self, heads, K=secret)}
    for model, reason in ((build(), "has no mechanism: attach one first"),
                          (attach(build(), type("X", (GFSA,), body)), "that no file can describe"),
                          (bounded, "undo parametrizations"), (meta, "are offloaded")):  # fmt: skip
        with pytest.raises(ValueError, match=reason):
            save_mechanism(model, tmp_path)
    with pytest.raises(ValueError, match="there is no folder runs/gfsa here"):
        load_mechanism(build(), "runs/gfsa")
    save_mechanism(attach(build(), reparam=BAND), tmp_path)
    with pytest.raises(ValueError, match="is of 3 layers, this model of 4"):
        load_mechanism(build(depth=4), tmp_path)
    other = build(embed_dim=96)
    weights = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match="another width or number of heads"):
        load_mechanism(other, tmp_path)
    assert all(map(torch.equal, other.state_dict().values(), weights.values()))
    with pytest.raises(ValueError, match="detach it first"):
        load_mechanism(load_mechanism(build(), tmp_path), tmp_path)
    saved = load_file(file := tmp_path / "mechanism.safetensors")
    for changed in (torch.nan, 1):
        save_file({name: torch.full(x.shape, changed) for name, x in saved.items()}, file)
        with pytest.raises(ValueError, match="is not of finite numbers of its kind"):
            load_mechanism(build(), tmp_path)


def test_the_mechanism_of_a_run_loads_as_documented() -> None:
    sizes = {"hidden_size": 24, "num_hidden_layers": 6, "num_attention_heads": 12}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes))
    load_mechanism(model, Path(__file__).parents[2] / "apps/nlp/mechanisms/minilm-gfsa-rte")
    learned = torch.stack([w for name, w in model.named_parameters() if name.endswith("wK")])
    assert learned.shape == (6, 12)
    assert 1e-3 < learned.abs().max() < 2e-3  # as its card says
