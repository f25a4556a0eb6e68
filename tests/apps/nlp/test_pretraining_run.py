"""Crammed BERT as runs: pre-training, its checkpoint, fine-tuning."""

import json
import math
from pathlib import Path
from string import ascii_lowercase

import pytest
import torch
from attention_core import EigenSpectrum
from attention_nlp import APP
from attention_nlp.data import SuperGlue, pretraining
from attention_nlp.data.pretraining import Pretraining
from attention_nlp.models import crammed
from attention_nlp.tasks import MaskedLanguage
from experiment_kit.cli import run_app

from tests.apps.cases import NLP
from tests.apps.contract import find_run
from tests.apps.nlp.small import CRAMMED, SLOTS, write_rows
from tests.apps.nlp.small import CRAMMED_INFO as INFO

DOCS = tuple(f"The {a} returns the {b} of its {a}." for a in ("list", "set", "dict")
             for b in ascii_lowercase)  # fmt: skip


@pytest.mark.parametrize("method", ["plain", "sharpening", "smoothing", "band_pass"])
def test_every_method_learns_python_documentation(method: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(pretraining, "list_sentences", lambda: DOCS)
    monkeypatch.setattr(pretraining, "_SENTENCES_PER_DOCUMENT", 2)
    options = {"vocab_size": 200, "max_length": 24, "val_fraction": 0.2}
    data = Pretraining("python_docs", max_tokens_per_char=None, **options)
    data.setup("fit")
    made = NLP.read("method", method)["model"].get("reparam", {}).get("init_args")
    reparam = None if made is None else lambda dim: EigenSpectrum(dim, **made)
    info = INFO._replace(vocab_size=200, max_length=24)
    network = crammed.build_crammed("masked", None, CRAMMED, info, {**SLOTS, "reparam": reparam})
    task, rows = MaskedLanguage(), data.splits["train"]
    items = data.collate([rows[i] for i in range(len(rows))])
    optimizer, losses = torch.optim.AdamW(network.parameters(), lr=5e-3), []
    for _ in range(40):
        loss = task.compute_loss(network, items)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[0] == pytest.approx(math.log(200), abs=0.1)
    assert losses[-1] < losses[0] - 1


def fit_arguments(folder: Path, *extra: str, **chosen: str) -> list[str]:
    arguments = [f"--run.folder={folder}", f"--model.options={json.dumps(CRAMMED)}"]
    arguments += ["--trainer.accelerator=cpu", "--trainer.precision=32-true"]
    arguments += ["--trainer.enable_progress_bar=false", "--spectral.every_n_steps=0", *extra]
    arguments += ["--data.init_args.max_length=24"]
    return ["fit", *NLP.arguments(*arguments, backbone="crammed_tiny", **chosen)]


def test_a_network_is_pre_trained_and_then_fine_tuned(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    (tmp_path / "texts").mkdir()
    texts = (f"the {a} of the {b} is {a}" for a in ("cat", "dog", "hat") for b in range(40))
    (tmp_path / "texts" / "a.txt").write_text("\n\n".join(texts))
    own = ["--data.init_args.vocab_size=500", "--data.init_args.max_tokens_per_char=null"]
    own += ["--data.init_args.val_fraction=0.2", "--spectral.every_n_steps=50"]
    own += ["--trainer.max_epochs=1", "--trainer.limit_val_batches=1"]
    chosen = {"data": "text_files", "recipe": "crammed", "profile": "small_pretraining"}
    run_app(APP, fit_arguments(tmp_path / "runs", *own, method="band_pass", **chosen))
    before = find_run(tmp_path / "runs")
    scored = {"test/loss", "test/perplexity", "test/accuracy"}
    assert scored <= before.read_result()["metrics"].keys()
    assert len(json.loads((before.folder / "spectral.json").read_text())["depth"]) == 4

    labels = ("entailment", "contradiction", "neutral") * 8
    rows = [{"premise": "a cat.", "hypothesis": "a dog", "label": label} for label in labels]
    for split in ("train", "val"):
        write_rows(tmp_path / "CB" / f"{split}.jsonl", rows)
    best = before.checkpoint_folder / "best.ckpt"
    weights = [f"--model.weights={best}", "--trainer.max_epochs=1"]
    chosen = {"data": "cb", "recipe": "superglue"}
    run_app(APP, fit_arguments(tmp_path / "fine", *weights, method="band_pass", **chosen))
    result = find_run(tmp_path / "fine").read_result()
    assert result["metrics"]["test/f1"] >= 0
    assert result["weights_source"] == f"pretrained: {best}"
    data = SuperGlue("cb", weights=str(best))
    assert data.vocab_size == 500 > len(data.tokenizer)
    with pytest.raises(SystemExit):
        run_app(APP, fit_arguments(tmp_path / "other", *weights, method="plain", **chosen))
    error = capsys.readouterr().err
    assert f"model.weights {best} is of another network: Unexp" in error  # a long one is cut
