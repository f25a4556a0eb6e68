"""Commands that measure the model of a config."""

import json
from dataclasses import replace

import pytest
import torch
from experiment_kit.cli import run_app
from experiment_kit.commands import measure

from tests.apps.contract import find_run
from tests.kit.tiny import APP, arguments

GFSA = "--model.filter=attention_core.GFSA"


@pytest.fixture(autouse=True)
def app(monkeypatch):
    """Install the tiny app with these changes."""

    def install(**changes):
        monkeypatch.setattr(measure, "load_app", lambda name: replace(APP, **changes))

    install()
    return install


def test_efficiency_is_written_into_the_folder_of_the_run(tmp_path, capsys, app) -> None:
    with pytest.raises(SystemExit, match="0"):
        measure.run_efficiency(["--help"])
    assert "--repeats REPEATS" in capsys.readouterr().out
    options = ["tiny", *arguments(tmp_path, GFSA), "--device=cpu", "--repeats=1"]
    measure.run_efficiency([*options, "--batch_size=3"])
    (path,) = tmp_path.rglob("efficiency.json")
    assert path.with_name("config.yaml").is_file()
    report = json.loads(path.read_text())
    assert (report["device"], report["batch_size"], report["repeats"]) == ("cpu", 3, 1)
    assert report["precision"] == "32-true"
    assert report["environment"]["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert report["metrics"]["extra_parameters"] == 2 * 2  # one for each head and layer
    assert all(value > 0 for value in report["metrics"].values())
    assert str(path) in capsys.readouterr().out
    app(measures_recipe=True)
    for given, used in (("null", "32-true"), ("16-mixed", "bf16-mixed")):  # a CPU has no float16
        own = f"--trainer.precision={given}", f"--run.folder={tmp_path / given}"
        measure.run_efficiency([*options, *own])
        (path,) = (tmp_path / given).rglob("efficiency.json")
        report = json.loads(path.read_text())
        assert (report["batch_size"], report["precision"]) == (2, used)


@pytest.mark.parametrize(("option", "sentence"), [
    ("--device=gpu", "invalid choice: 'gpu'"),
    ("--repeats=0", "--repeats and --batch_size must be at least 1"),
    ("--batch_size=0", "--repeats and --batch_size must be at least 1"),
    ("--model.layres=3", "unrecognized arguments: --model.layres=3"),
    ("--model.filter.init_args.K=0", "GFSA.K must be a whole number of at least 1, got 0"),
    ("", "name an app: "),
])  # fmt: skip
def test_a_mistake_is_one_sentence(tmp_path, read_error, option, sentence) -> None:
    args = ["tiny", *arguments(tmp_path, GFSA), option] if option else []
    assert sentence in read_error(measure.run_efficiency, args)


def test_eigenvalues_are_written_into_the_folder_of_the_run(tmp_path, read_error) -> None:
    args = arguments(tmp_path, GFSA)
    assert "is not trained: run fit" in read_error(measure.run_eigenvalues, ["tiny", *args])
    too_few = read_error(measure.run_eigenvalues, ["tiny", *args, "--samples=0"])
    assert "--samples must be at least 1" in too_few
    run_app(APP, ["fit", *args])
    measure.run_eigenvalues(["tiny", *args, "--samples=1"])
    report = json.loads((find_run(tmp_path).folder / "eigenvalues.json").read_text())
    assert (report["samples"], len(report["layers"])) == (1, 2)
    assert sum(report["metrics"].values()) == pytest.approx(2)  # with zeros, and without
    for name, value in report["metrics"].items():
        assert value == pytest.approx(sum(layer[name] for layer in report["layers"]) / 2)
    measure.run_eigenvalues(["tiny", *args, "--samples=all", "--epoch=last"])
    report = json.loads((find_run(tmp_path).folder / "eigenvalues.json").read_text())
    assert report["epoch"] == "last"
    assert report["options"] == {"samples": "all", "epoch": "last"}
    assert report["samples"] > 1
