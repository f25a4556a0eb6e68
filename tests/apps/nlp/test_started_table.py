"""A table whose cells start from pre-training: real runs, one resumed, and one that fails."""

import io
import json
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from attention_nlp import APP
from experiment_kit.cli import run_app
from experiment_kit.commands import table as publish
from experiment_kit.errors import UserError
from experiment_kit.launch import execute
from experiment_kit.launch.plan import plan_runs
from experiment_kit.papers.results import read_results
from experiment_kit.papers.spec import TableSpec, load_spec
from experiment_kit.run import Run

from tests.apps.cases import NLP
from tests.apps.contract import interrupt_training
from tests.apps.nlp.small import CRAMMED, write_rows

TABLE = "record-straight-figure-6"
TINY = [f"--model.options={json.dumps(CRAMMED)}", "--data.init_args.max_length=24",
        "--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--trainer.precision=32-true",
        "--spectral.every_n_steps=0"]  # fmt: skip
PRETRAINING = ["--data.init_args.vocab_size=300", "--data.init_args.val_fraction=0.2",
               "--data.init_args.batch_size=16", "--data.init_args.max_tokens_per_char=null",
               "--trainer.limit_train_batches=3", "--trainer.limit_val_batches=1"]  # fmt: skip
SPEC = {
    "app": "nlp", "backbone": "crammed_tiny", "recipe": "superglue", "scale": 100,
    "args": [*TINY, "--data.init_args.batch_size=4"],
    "start": {"data": "text_files", "recipe": "crammed", "args": TINY + PRETRAINING},
    "columns": {"cb_16": {"data": "cb", "metric": "last/f1"}},
    "rows": {"crammed_bert": "plain", "crammed_bert_tilde": "band_pass"},
    "protocol": "test", "source": "text", "reason": "no code is released",
}  # fmt: skip


def run_in_turn(jobs, workers, on_end, *_) -> None:
    """Run jobs in this process: to start another takes longer than the training here."""
    for job in jobs:
        if job.needs and not job.needs.is_file():
            continue
        status, text = 0, io.StringIO()
        with redirect_stdout(text), redirect_stderr(text):
            try:
                run_app(APP, [*job.arguments[2:]])
            except SystemExit as end:
                status = end.code
        job.log.parent.mkdir(parents=True, exist_ok=True)
        job.log.write_text(text.getvalue())
        on_end(job, status)


@pytest.fixture
def spec(tmp_path, monkeypatch) -> TableSpec:
    """Make a table of one task and two methods, and its data."""
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    (tmp_path / "texts").mkdir()
    words = ("cat", "dog", "hat", "mat", "rat")
    texts = (f"the {a} of the {b} is {a}" for a in words for b in range(40))
    (tmp_path / "texts" / "a.txt").write_text("\n\n".join(texts))
    labels = ("entailment", "contradiction", "neutral") * 8
    rows = [{"premise": "a cat.", "hypothesis": "a dog", "label": label} for label in labels]
    for split in ("train", "val"):
        write_rows(tmp_path / "CB" / f"{split}.jsonl", rows)
    path = tmp_path / f"{TABLE}.yaml"
    path.write_text(json.dumps(SPEC))
    found = load_spec(path)
    monkeypatch.setattr(publish, "find_spec", lambda _: found)
    monkeypatch.setattr(execute, "run_jobs", run_in_turn)
    return found


def make_table(folder: Path, **options) -> None:
    out = str(folder.parent / "results")
    publish.make_table(
        TABLE, protocol="validation", seeds=[0], jobs=2, out=out, folder=str(folder), **options
    )


def test_each_method_goes_on_from_its_own_pre_training(spec, tmp_path, capfd) -> None:
    folder = tmp_path / "runs"
    cells = [cell.experiment for cell in spec.list_cells("paper", "validation", [0])]
    runs = plan_runs(cells, str(folder))
    plain, band_pass = cells
    # what the pre-training of one method needs is in its way
    checkpoint_folder = runs[band_pass.start].checkpoint_folder
    checkpoint_folder.parent.mkdir(parents=True)
    checkpoint_folder.touch()

    make_table(folder, dry_run=True)
    planned = capfd.readouterr().out
    for cell in cells:
        line = f"to train: {runs[cell].folder}, starts from {runs[cell.start].folder}\n"
        assert planned.index(f"to train: {runs[cell.start].folder}\n") < planned.index(line)
    assert not runs[plain].folder.exists()

    with pytest.raises(UserError, match="2 runs did not finish"):
        make_table(folder)
    left_out = " ".join(capfd.readouterr().out.split())
    assert left_out.count("left out") == left_out.count("left out cb band_pass seed 0: they") == 1
    result = runs[plain].read_result()
    name = "/".join(runs[plain.start].folder.parts[-3:])
    assert result["weights_source"] == f"pretrained: {name}"
    lines = read_results(tmp_path / "results" / f"{TABLE}.csv")
    assert lines["row"].tolist() == ["crammed_bert"]
    assert lines["value"].tolist() == [pytest.approx(100 * result["metrics"]["last/f1"], abs=0.01)]

    checkpoint_folder.unlink()
    made = runs[plain].folder.stat().st_mtime_ns
    make_table(folder)
    assert runs[band_pass].read_result()["metrics"]["last/f1"] >= 0
    assert runs[plain].folder.stat().st_mtime_ns == made
    assert len(read_results(tmp_path / "results" / f"{TABLE}.csv")) == 2

    # another place has the same runs, and needs no texts to go on from the pre-training there
    moved = tmp_path / "moved"
    folder.rename(moved)
    shutil.rmtree(tmp_path / "texts")
    after = plan_runs(cells, str(moved))
    shutil.rmtree(after[plain].folder)
    check_resuming(plain.arguments(str(moved), after), after[plain])


def check_resuming(arguments: list[str], run: Run) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_training(patch, NLP, 2)
        with pytest.raises(SystemExit, match="75"):
            run_app(APP, ["fit", *arguments])
    assert run.find_latest_step() == 2  # out of 6
    assert not run.has_result
    run_app(APP, ["fit", *arguments])
    assert run.read_result()["epochs"] == 1
