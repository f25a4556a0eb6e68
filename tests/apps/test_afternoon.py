"""The afternoon of a Lightning user: docs/own_data.md as it stands, then a stock Trainer."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from attention_core import GFSA
from attention_vision import APP
from attention_vision.module import VisionClassifier
from experiment_kit.cli import run_app
from experiment_kit.run import Run
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.tuner import Tuner

PAGE = (Path(__file__).parents[2] / "docs/own_data.md").read_text()
QUIET = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
SHALLOW = "--model.model_kwargs={depth: 2}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder with the files of the page."""
    folder = tmp_path_factory.mktemp("work")
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL):
        (folder / name).write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", sys.path[:])
        yield folder


def run_block(number: int, *options: str, run: str = "") -> Run:
    """Run a block of the page's shell session; return the run that it makes."""
    before = Run.find_all("runs")
    block = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[number]
    for line in block.splitlines():
        words = [word.replace("RUN", run) for word in shlex.split(line)]
        assert words[0] == "attention-vision"
        run_app(APP, [*words[1:], *QUIET, *options])
    (made,) = (run for run in Run.find_all("runs") if run not in before)
    return made


def test_the_page_of_own_data_runs_as_it_stands(folder, capsys) -> None:
    short = run_block(0, SHALLOW)
    assert short.parse(short.folder)[1:4] == ("Stripes", "deit_tiny", "gfsa")
    long = run_block(1, SHALLOW, run=str(short.folder))
    text = capsys.readouterr().out
    assert re.search(f"{long.folder} starts from step \\d of {short.folder}\n", text)
    assert (long.read_result()["epochs"], short.read_result()["epochs"]) == (3, 1)
    assert short.read_result().items() >= {"data": "Stripes", "method": "gfsa"}.items()
    assert (short.folder / "predictions.pt").is_file()
    other = ["--trainer.max_epochs=2", "--seed_everything=1", "--trust=mine.Stripes"]
    run_app(APP, ["fit", str(short.folder), SHALLOW, *other, *QUIET])
    assert "starts from nothing" in capsys.readouterr().out


def test_an_own_model_trains_and_is_tested_by_the_folder_of_its_run(folder, capsys) -> None:
    run = run_block(2)
    assert run.parse(run.folder)[1:4] == ("Stripes", "Patches", "gfsa")
    run_app(APP, ["test", str(run.folder), "--trust=mine.Stripes,my_model.Patches", *QUIET])
    assert "test/accuracy" in capsys.readouterr().out


def test_a_bug_in_own_data_is_named_with_its_line(folder, read_error) -> None:
    code = "from mine import Stripes\nclass Bug(Stripes):\n  def __init__(self):\n    int('x')"
    (folder / "bug.py").write_text(code)
    error = read_error(run_app, APP, ["fit", "-c", "base", "--data=bug.Bug", *QUIET])
    assert f"base 10: 'x' (ValueError in {folder}/bug.py, line 4)" in error


def test_what_a_data_module_lacks_is_asked_for(folder, read_error) -> None:
    (folder / "bare.py").write_text("from mine import Stripes\n\nclass Bare(Stripes):\n"
                                    "    num_classes = property()\n")  # fmt: skip
    error = read_error(run_app, APP, ["fit", "-c", "base", "--data=bare.Bare", *QUIET])
    assert "data: the model needs num_classes: make it an attribute of the class" in error


def test_a_module_of_ours_in_a_stock_trainer(folder) -> None:
    from mine import Stripes

    torch.manual_seed(0)
    best = ModelCheckpoint(folder, monitor="val/accuracy", mode="max")
    options = {"accelerator": "cpu", "enable_progress_bar": False, "logger": False}
    trainer = Trainer(max_epochs=1, callbacks=[best], default_root_dir=folder, **options)
    model = VisionClassifier(2, 32, model_kwargs={"depth": 1}, filter=GFSA)
    trainer.fit(model, Stripes())
    loaded = VisionClassifier.load_from_checkpoint(best.best_model_path)
    assert all(map(torch.equal, loaded.state_dict().values(), model.state_dict().values()))
    assert "test/accuracy" in trainer.test(model, Stripes(), ckpt_path="best", verbose=False)[0]
    tuner = Tuner(Trainer(max_epochs=1, default_root_dir=folder, **options))
    found = tuner.lr_find(model, datamodule=Stripes(640), num_training=40)
    model.trainer.fit(model, Stripes())
    assert model.trainer.optimizers[0].param_groups[0]["lr"] == found.suggestion()
