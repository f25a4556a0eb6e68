"""Fine-tuning that starts from pre-training: real runs, in a folder that moves, and resumed."""

import json
import shutil

import pytest
from attention_nlp import APP
from attention_nlp.models.checkpoints import load_run_tokenizer
from experiment_kit.cli import run_app
from experiment_kit.launch.plan import plan_runs
from experiment_kit.papers.spec import load_spec

from tests.apps.cases import NLP
from tests.apps.contract import interrupt_training
from tests.apps.nlp.small import CRAMMED, write_rows

TINY = [f"--model.options={json.dumps(CRAMMED)}", "--data.init_args.max_length=24",
        "--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--trainer.precision=32-true",
        "--spectral.every_n_steps=0"]  # fmt: skip
PRETRAINING = ["--data.init_args.vocab_size=300", "--data.init_args.val_fraction=0.2",
               "--data.init_args.batch_size=16", "--trainer.limit_train_batches=3",
               "--trainer.limit_val_batches=1"]  # fmt: skip
SPEC = {
    "app": "nlp", "backbone": "crammed_tiny", "recipe": "superglue", "scale": 100,
    "args": [*TINY, "--data.init_args.batch_size=4"],
    "start": {"data": "text_files", "recipe": "crammed", "args": TINY + PRETRAINING},
    "columns": {"cb_16": {"data": "cb", "metric": "last/f1"}},
    "rows": {"crammed_bert_tilde": "band_pass"},
    "protocol": "test", "source": "text", "reason": "no code is released",
}  # fmt: skip


def test_a_method_goes_on_from_its_own_pre_training(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    words = ("cat", "dog", "hat", "mat", "ß")
    texts = (f"the {a} of the {b} is {a}" for a in words for b in range(40))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("\n\n".join(texts))
    labels = ("entailment", "contradiction", "neutral") * 8
    rows = [{"premise": "a cat.", "hypothesis": "a dog", "label": label} for label in labels]
    for split in ("train", "val"):
        write_rows(tmp_path / "CB" / f"{split}.jsonl", rows)
    path, folder, moved = (tmp_path / name for name in ("record-straight-figure-6.yaml", "a", "b"))
    path.write_text(json.dumps(SPEC))
    (cell,) = (c.experiment for c in load_spec(path).list_cells("paper", "validation", [0]))
    runs = plan_runs([cell], str(folder))
    run_app(APP, ["fit", *cell.start.arguments(str(folder), runs)])

    # another place has the same runs, and needs no texts to go on from the pre-training there
    folder.rename(moved)
    shutil.rmtree(tmp_path / "texts")
    runs = plan_runs([cell], str(moved))
    run, arguments = runs[cell], ["fit", *cell.arguments(str(moved), runs)]
    with pytest.MonkeyPatch.context() as patch:
        interrupt_training(patch, NLP, 2)
        with pytest.raises(SystemExit, match="75"):
            run_app(APP, arguments)
    assert run.find_latest_step() == 2  # out of 6
    assert not run.has_result
    run_app(APP, arguments)
    name = "/".join(runs[cell.start].folder.parts[-3:])
    assert "ß" in load_run_tokenizer(str(runs[cell.start].folder)).tokenize("a ß")
    result = run.read_result()
    assert (result["epochs"], result["weights_source"]) == (1, f"pretrained: {name}")
