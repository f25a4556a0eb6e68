"""Crammed BERT as runs: pre-training, its checkpoint, fine-tuning."""

import json
import math
from pathlib import Path
from string import ascii_lowercase

import pytest
import torch
import yaml
from attention_core import EigenSpectrum, Plain, SelfAttention
from attention_nlp.__main__ import APP
from attention_nlp.data import SuperGlue, pretraining, sources
from attention_nlp.data.pretraining import Pretraining
from attention_nlp.models import checkpoint, crammed
from attention_nlp.models.encoder import Block
from attention_nlp.tasks import Facts, MaskedLanguage
from experiment_kit.cli import main
from experiment_kit.errors import UserError
from experiment_kit.launch import compose

from tests.apps.tiny import only_run

FACTS = Facts(num_labels=3, vocab_size=53, max_length=16, pad=0)
SLOTS = {"filter": Plain, "layers": ":"}
DOCS = tuple(f"The {a} returns the {b} of its {a}." for a in ("list", "set", "dict")
             for b in ascii_lowercase)  # fmt: skip
SIZE = {"depth": 2, "width": 12, "heads": 3, "hidden": 10, "length": 24}


@pytest.mark.parametrize("method", ["plain", "sharpening", "smoothing", "band_pass"])
def test_every_method_learns_python_documentation(method: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(pretraining, "TOKENS", tmp_path / "tokens")
    monkeypatch.setattr(pretraining, "TOKENIZERS", tmp_path / "tokenizers")
    monkeypatch.setattr(sources, "sentences", lambda: DOCS)
    monkeypatch.setattr(sources, "_TOGETHER", 2)
    data = Pretraining("python_docs", vocabulary=200, max_length=24, share=0.2, trash=None)
    data.setup("fit")
    model = yaml.safe_load(Path(f"apps/nlp/configs/method/{method}.yaml").read_text())["model"]
    made = model.get("reparam", {}).get("init_args")
    reparam = None if made is None else lambda dim: EigenSpectrum(dim, **made)
    facts = FACTS._replace(vocab_size=200, max_length=24)
    network = crammed.build("masked", None, SIZE, facts, {**SLOTS, "reparam": reparam})
    task, rows = MaskedLanguage(), data.parts["train"]
    items = data.collate([rows[i] for i in range(len(rows))])
    optimizer, losses = torch.optim.AdamW(network.parameters(), lr=5e-3), []
    for _ in range(40):
        loss = task.loss(network, items)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[0] == pytest.approx(math.log(200), abs=0.1)
    assert losses[-1] < losses[0] - 1


def quick(folder: Path, *extra: str, **chosen: str) -> list[str]:
    arguments = [f"--run.folder={folder}", f"--model.options={json.dumps(SIZE)}"]
    arguments += ["--trainer.accelerator=cpu"]
    arguments += ["--trainer.enable_progress_bar=false", "--spectral.every_n_steps=0", *extra]
    arguments += ["--data.init_args.max_length=24", "--trainer.precision=32-true"]
    chosen = {"backbone": "crammed_tiny", **chosen}
    return ["fit", *compose.arguments("nlp", arguments, **chosen)]


def test_a_network_is_pre_trained_and_then_fine_tuned(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    monkeypatch.setattr(pretraining, "TOKENS", tmp_path / "tokens")
    monkeypatch.setattr(pretraining, "TOKENIZERS", tmp_path / "tokenizers")
    (tmp_path / "texts").mkdir()
    texts = (f"the {a} of the {b} is {a}" for a in ("cat", "dog", "hat") for b in range(40))
    (tmp_path / "texts" / "a.txt").write_text("\n\n".join(texts))
    own = ["--data.init_args.vocabulary=500", "--data.init_args.trash=null"]
    own += ["--data.init_args.share=0.2", "--trainer.max_epochs=1", "--trainer.limit_val_batches=1"]
    own += ["--spectral.every_n_steps=50"]  # at the end
    chosen = {"data": "text_files", "recipe": "crammed", "profile": "small_pretraining"}
    main(APP, quick(tmp_path / "runs", *own, method="band_pass", **chosen))
    before = only_run(tmp_path / "runs")
    assert before.result()["metrics"].keys() >= {"test/loss", "test/perplexity", "test/accuracy"}
    assert len(json.loads((before.folder / "spectral.json").read_text())["depth"]) == 3

    labels = ("entailment", "contradiction", "neutral") * 8
    rows = [{"premise": "a cat.", "hypothesis": "a dog", "label": label} for label in labels]
    (tmp_path / "CB").mkdir()
    for split in ("train", "val"):
        (tmp_path / "CB" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    best = before.checkpoint_folder / "best.ckpt"
    weights = [f"--model.weights={best}", "--trainer.max_epochs=1"]
    chosen = {"data": "cb", "recipe": "superglue"}
    main(APP, quick(tmp_path / "fine", *weights, method="band_pass", **chosen))
    result = only_run(tmp_path / "fine").result()
    assert result["metrics"]["test/f1"] >= 0
    assert result["origin"] == f"pretrained: {best}"
    data = SuperGlue("cb", weights=str(best))
    assert data.vocab_size == 500 > len(data.tokenizer)
    with pytest.raises(SystemExit):
        main(APP, quick(tmp_path / "other", *weights, method="plain", **chosen))
    assert (
        "is of another network: it has blocks.0.attention.proj.parametr" in capsys.readouterr().err
    )


def test_fine_tuning_starts_where_pre_training_ended(tmp_path) -> None:
    trained = crammed.build("masked", None, SIZE, FACTS, SLOTS)
    state = {f"model.{name}": weight for name, weight in trained.state_dict().items()}
    torch.save({"state_dict": state}, tmp_path / "best.ckpt")
    tuned = crammed.build("labels", str(tmp_path / "best.ckpt"), SIZE, FACTS, SLOTS)
    for name, weight in trained.base_model.state_dict().items():
        assert torch.equal(tuned.base_model.state_dict()[name], weight)


@pytest.mark.parametrize(
    ("saved", "sentence"),
    [
        (None, r"best\.ckpt does not exist"),
        (b"no archive", "is not a checkpoint that can be read"),
        ({"state_dict": {}}, r"is of another network: it lacks embedding\.scale"),
    ],
)
def test_weights_that_cannot_be_loaded_are_told(saved, sentence, tmp_path) -> None:
    path = tmp_path / "best.ckpt"
    if isinstance(saved, bytes):
        path.write_bytes(saved)
    elif saved is not None:
        torch.save(saved, path)
        with pytest.raises(UserError, match="holds no tokenizer"):
            checkpoint.tokenizer(str(path))
    with pytest.raises(UserError, match=sentence):
        crammed.build("labels", str(path), SIZE, FACTS, SLOTS)


def test_a_spectrum_keeps_the_values_that_it_has_drawn() -> None:
    slots = {"reparam": lambda width: EigenSpectrum(width, init="he")}
    layer = SelfAttention(64, 2, bias=False, **slots)
    drawn = layer.qkv.weight[128:].clone()
    Block(layer, 64, 6, 0.0)
    assert torch.equal(layer.qkv.weight[128:], drawn)
    assert layer.qkv.weight[:128].std() < 0.03
