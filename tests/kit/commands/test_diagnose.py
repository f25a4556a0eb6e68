"""`allpass diagnose`: table, verdict and page of a model, or one sentence."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed.checkpoint as dcp
from attention_core import AttnScale, attach, spectral
from attention_core.diagnosis import Diagnosis
from attention_vision.models.timm_models import build_model
from experiment_kit.commands.diagnose import mask_prefix, name_page
from experiment_kit.diagnosis import model_sources
from experiment_kit.diagnosis.model_inputs import make_image
from experiment_kit.diagnosis.page import tabulate_models
from experiment_kit.errors import UserError
from torch import nn
from transformers import AutoConfig, AutoModel

from tests.processes import run_allpass

SIZES = {"hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3,
         "intermediate_size": 24, "vocab_size": 13}  # fmt: skip
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "three"]


def save_bert(folder: Path) -> nn.Module:
    """Save a tiny BERT of three layers with a tokenizer, and return it."""
    bert = AutoModel.from_config(AutoConfig.for_model("bert", **SIZES))
    bert.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    return bert


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny BERT with a tokenizer, one with weights that are NaN, texts, an image, and a ViT."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    bert = save_bert(folder / "bert")
    bert.encoder.layer[1].output.dense.weight.data[0, 0] = torch.nan
    bert.save_pretrained(folder / "diverged")
    bert.register_buffer("SCB", torch.ones(1))
    bert.save_pretrained(folder / "packed")
    (folder / "texts.txt").write_text("one two three two\ntwo three\nthree three one\n")
    make_image(0, 40).save(folder / "image.png")
    vit = attach(build_model("deit_tiny_patch16_224", 5, 32), AttnScale)
    torch.save({"model": vit.state_dict()}, folder / "vit.pth")
    torch.save(attach(Net(), AttnScale).state_dict(), folder / "net.pth")
    torch.save({"conv.weight": torch.ones(9, dtype=torch.int8)}, folder / "a,b.pth")
    content = bytearray((folder / "vit.pth").read_bytes())
    content[len(content) // 2] ^= 64
    (folder / "bit.pth").write_bytes(content)
    dcp.save(vit.state_dict(), checkpoint_id=folder / "sharded", no_dist=True)
    return folder


def refuse_download(files) -> None:
    raise UserError("the hub is out of reach")


def run(folder, *arguments: str) -> None:
    run_allpass("diagnose", *(argument.format(folder=folder) for argument in arguments))


def test_texts_become_a_table_a_verdict_and_a_page(folder, tmp_path, capsys) -> None:
    page = tmp_path / "new/page.html"
    model, texts = f"hf:{folder}/bert", f"--input={folder}/texts.txt"
    run(folder, model, texts, "--layers=1:", f"--out={page}")
    text = capsys.readouterr().out
    first, *table, last = text.splitlines()
    assert first.startswith(f"diagnose {model}: long sequences")
    assert max(map(len, table)) <= 80
    assert "HFC/LFC attn MLP norm cosine rank entropy smooths tied" in " ".join(text.split())
    assert "3 samples of 6 tokens" in " ".join(text.split())  # the path may wrap
    assert re.search(r"^ *1 .*^ *2 ", text, re.MULTILINE | re.DOTALL)
    assert not re.search(r"^ *0 ", text, re.MULTILINE)
    assert re.fullmatch(rf"{page}; .*json, .*csv", last)
    html = page.read_text()
    for part in ("<h2", "Layers", "Figures", "<img", f"allpass diagnose {model}"):
        assert part in html
    assert not re.search(r'(src|href)="http', html)


def test_pages_of_several_models_have_names_of_their_own() -> None:
    pages = {name_page([f"run:{'a' * 90}", f"run:{'a' * 90}/{last}"], "") for last in "bc"}
    pages |= {name_page([f"hf:{name}"], "") for name in ("müller", "möller", "模" * 99)}
    assert len([page for page in pages if len(page.name.encode()) < 130]) == 5
    assert name_page(["timm:a", "hf:b"], "new/folder") == Path("new/folder/timm-a-hf-b.html")
    assert [name_page(["a"], out).name for out in ("/dev/null", "v1.5/")] == ["null", "a.html"]


@pytest.mark.usefixtures("unsaved")
def test_a_checkpoint_of_a_mechanism_shows_its_coefficients(folder, tmp_path, capsys) -> None:
    options = ("--backbone=deit_tiny", "--layers=3:5", f"--out={tmp_path}/page.html")
    run(folder, "checkpoint:{folder}/vit.pth", "--input={folder}/image.png", *options)
    assert "with AttnScale in 12 blocks" in " ".join(capsys.readouterr().out.split())
    assert 'alt="coefficients"' in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(("arguments", "sentence"), [
    (("vit_tiny_patch16_224",), "has none of the forms timm:NAME, hf:FOLDER"),
    (("timm:resnet18", "--samples=1"), "ResNet has no attention"),
    (("timm:vit_tinny_patch16_224",), "(did you mean vit_tiny_patch16_224"),
    (("hf:{folder}/bert", "--input={folder}/image.png"), "image.png, line 1, character 1: not"),
    (("hf:{folder}/bert", "--input={folder}/none.txt"), "none.txt does not exist"),
    (("hf:{folder}/diverged",), "layer 1 (encoder.layer.1.attention.self) is the first whose"),
    (("hf:{folder}",), "config.json"),
    (("hf:{folder}/packed",), "its weights are in 8 bits, with SCB: save them as float32"),
    (("hf:{folder}/diverged", "--input={folder}/texts.txt"), "has no tokenizer to read --input"),
    (("hf:{folder}/bert", "--input={folder}/texts.txt", "--layers=7:"),
     "layers '7:' names none of the 3 layers"),
    (("hf:{folder}/bert", "--mechanisms=[gfsa,x]"), "no value of --mechanisms named 'x'; allowed"),
    (("run:{folder}",), "is the folder of no finished run"),
    ((), "diagnose takes a model"),
    (("timm:test_vit", "--out=x.csv"), "is no file for a page"),
    (("timm:test_vit", "--attach=none"), "or file of --attach named 'none'; allowed: gfsa,"),
    (("class:nowhere:Net",), "nowhere:Net cannot be built: No module named 'nowhere'"),
    (("checkpoint:{folder}/vit.pth", f"--class={__name__}:Net"), "lacks patches.weight (8,"),
    (("checkpoint:{folder}/bert", f"--class={__name__}:Net"), "bert is of another model: it lacks"),
    (("checkpoint:{folder}/net.pth", f"--class={__name__}:Net"), "it has encoder.layers.0.self_at"),
    (("checkpoint:{folder}/vit.pth",), "needs the backbone"),
    (("checkpoint:{folder}/vit.pth", "--backbone=deit_tiny_24"), "it lacks blocks.12."),
    (("checkpoint:{folder}/a,b.pth", "--backbone=deit_tiny"), "a,b.pth has conv.weight in 8 bits"),
    (("checkpoint:{folder}/bit.pth", "--backbone=deit_tiny"), " in it is damaged"),
    (("checkpoint:{folder}/sharded", "--backbone=deit_tiny"), "0_0.distcp is a part of one: save"),
    (("checkpoint:{folder}/texts.txt", "--backbone=deit_tiny"), "is not a readable checkpoint"),
])  # fmt: skip
def test_a_mistake_is_one_sentence(arguments, sentence, folder, monkeypatch, read_error) -> None:
    monkeypatch.setattr(model_sources.download, "fetch_hub_files", refuse_download)
    assert sentence in read_error(run, folder, *arguments)


@pytest.mark.parametrize(("prefix", "registers", "tokens", "skip", "left"), [
    (2, 0, 6, "cls", 4), (5, 4, 9, "registers", 5), (1, 0, 4, "cls", None),  # DeiT-distilled, CaiT
])  # fmt: skip
def test_skipped_tokens_are_those_of_the_layers(prefix, registers, tokens, skip, left) -> None:
    network, report = nn.Module(), SimpleNamespace(num_samples=1, num_tokens=tokens, model="it")
    network.cls_token, network.num_prefix_tokens = torch.ones(1), prefix
    network.num_reg_tokens, network.patch_embed = registers, SimpleNamespace(num_patches=4)
    with nullcontext() if left else pytest.raises(UserError, match="no such token in its"):
        assert mask_prefix(network, report, [skip], None).sum() == left


class Net(nn.Module):
    """A class of a user: an embedding of patches and two layers."""

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, 4, 4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        layer = nn.TransformerEncoderLayer(dim, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        x = self.patches(x).flatten(2).mT
        return self.encoder(torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1))


def read_reports(page) -> list[Diagnosis]:
    return [Diagnosis.from_dict(x) for x in json.loads(page.with_suffix(".json").read_text())]


@pytest.mark.usefixtures("unsaved")
def test_several_models_are_one_page_with_differences(folder, tmp_path, capsys) -> None:
    page = tmp_path / "page.html"
    models = "timm:test_vit,timm:test_vit2"
    run(folder, models, "--samples=3", "--attach=centered", f"--out={page}")
    html, text = page.read_text(), " ".join(capsys.readouterr().out.split())
    assert "Diagnosis of 4 models" in html
    assert html.count("The weights are random and the inputs synthetic") == 4
    assert "timm:test_vit2 + centered" in text
    assert "inputs synthetic: this says nothing of a trained model. The model" in text
    reports = read_reports(page)
    values = [report.layers[-1].output.samples["token_cosine"] for report in reports]
    difference = np.mean(np.subtract(values[1], values[0]))
    table = tabulate_models(dict(zip("abcd", reports, strict=True)))
    assert table.rows[1][table.head.index("Δ cosine")].startswith(f"{difference:+.3f} [")
    frame = pd.read_csv(page.with_suffix(".csv"))
    assert frame["model"].nunique() == 4
    last = reports[-1].layers[-1].output
    assert frame["mlp_token_cosine"].iloc[-1] == pytest.approx(last.token_cosine)


@pytest.mark.usefixtures("unsaved")
def test_a_folder_of_checkpoints_is_followed_by_step(folder, tmp_path, monkeypatch) -> None:
    for step in (20, 100, 3):
        torch.manual_seed(step)
        weights = {f"model.net.{name}": w for name, w in Net().state_dict().items()}
        content = {"state_dict": weights | {"loss.weight": torch.ones(2)}, "epoch": 1}
        torch.save(content, tmp_path / f"step={step}-loss=0.5.ckpt")
    page = tmp_path / "page.html"
    options = f"--class={__name__}:Net", '--kwargs={{"dim": 8}}', "--shape=[3,16,16]"
    run(folder, f"checkpoint:{tmp_path}", "--samples=2", *options, f"--out={page}")
    names = [Path(report.model).name for report in read_reports(page)]
    assert names == [f"step={step}-loss=0.5.ckpt" for step in (3, 20, 100)]
    assert 'alt="models by step"' in page.read_text()
    one = tmp_path / "one.html"
    name = f"checkpoint:{tmp_path}/step=20-loss=0.5.ckpt"
    run(folder, name, "--samples=2", *options, "--skip=cls", f"--out={one}")
    whole, skipped = read_reports(page)[1], read_reports(one)[0]
    assert whole.layers[0].steps["input"] != skipped.layers[0].steps["input"]
    torch.manual_seed(20)
    net = Net().eval()
    images = np.stack([np.array(make_image(i).resize((16, 16))) for i in (0, 1)])
    x = net.patches(torch.from_numpy(images).movedim(-1, 1) / 127.5 - 1).flatten(2).mT
    expected = spectral.token_cosine(x).mean().item()
    assert skipped.layers[0].steps["input"].token_cosine == pytest.approx(expected, rel=1e-4)


@pytest.mark.usefixtures("unsaved")
def test_a_batch_of_ones_own_is_a_file(folder, tmp_path, monkeypatch) -> None:
    torch.save(torch.randn(5, 3, 16, 16), tmp_path / "batch.pt")
    page = tmp_path / "page.html"
    run(folder, f"class:{__name__}:Net", f"--input={tmp_path}/batch.pt", f"--out={page}")
    assert read_reports(page)[0].num_samples == 5
