"""One experiment by the names of its overlays: its printed config is that of its run."""

import sys
from pathlib import Path

import pytest
import yaml
from experiment_kit.__main__ import main
from experiment_kit.cli import AppCLI
from experiment_kit.launch.overlays import choose_seeds, overlay_arguments
from experiment_kit.launch.plan import Experiment, load_app, plan_configs, plan_runs
from experiment_kit.papers.spec import find_spec

FIRST = Experiment(app="sequence", data="heartbeat", backbone="uea", method="agf")


@pytest.fixture
def print_config(monkeypatch, capsys):
    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["experiment_kit", "config", *arguments])
        main()
        return capsys.readouterr().out

    return run


def test_the_printed_config_is_that_of_the_run(print_config, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("DATA_DIR", raising=False)
    text = print_config("sequence", "--data=heartbeat", "--method=agf")
    assert yaml.safe_load(text) == plan_configs([FIRST])[FIRST]
    path = tmp_path / "config.yaml"
    path.write_text(text)
    again = AppCLI(load_app("sequence"), ["fit", "-c", str(path)])
    assert again.find_run() == plan_runs([FIRST])[FIRST]
    assert not Path("runs", "sequence", "heartbeat-uea", "agf").exists()


def test_options_with_a_dot_are_the_apps_own(print_config) -> None:
    options = ("--model.kernel.init_args.K=9", "--trainer.max_epochs", "3")
    config = yaml.safe_load(print_config("sequence", "heartbeat", "--method=agf", *options))
    assert config["model"]["kernel"]["init_args"]["K"] == 9
    assert config["trainer"]["max_epochs"] == 3
    quoted = print_config("sequence", "heartbeat", "--method=agf", f"--args={' '.join(options)}")
    assert yaml.safe_load(quoted) == config


FILES = {
    "base": "{}",
    "backbones": "bert: {}",
    "data/one": "defaults: {backbone: bert}",
    "data/two": "defaults: {backbone: bert}",
    "methods": "gfsa: {}",
    "protocols": "published: {defaults: {seeds: [5, 6]}, at: {two: {d: {v: x},"
    " defaults: {seeds: [7]}}, '*/*/*/gfsa': {m: {K: 9}}, '*/*/*/p': {m: {K: 8}}}}",
}


@pytest.fixture
def new_app(tmp_path, monkeypatch) -> None:
    for name, text in FILES.items():
        path = tmp_path / f"attention_quirky/configs/{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(("data", "protocol", "rows", "seeds"), [
    ("one", "", [], [0]),
    ("one", "validation", [], [0]),
    ("one", "published", ["--m.K=9"], [5, 6]),
    ("two", "published", ["--d.v=x", "--m.K=9"], [7]),
])  # fmt: skip
def test_a_protocol_sets_quirks_by_data_set_and_method(
    new_app, data, protocol, rows, seeds
) -> None:
    names = {"data": data, "backbone": "bert", "method": "gfsa", "protocol": protocol}
    arguments = overlay_arguments("quirky", **names)
    assert [argument for argument in arguments if argument.startswith("--")] == rows
    assert ("protocol/published" in arguments) == (protocol == "published")
    assert choose_seeds("quirky", [0], **names) == seeds


def test_a_protocol_of_the_app_is_one_of_its_tables_and_brings_its_seeds(monkeypatch) -> None:
    spec = find_spec("agf-table-1")
    choose = "experiment_kit.papers.spec.choose_seeds"
    monkeypatch.setattr(choose, lambda *_, **__: [7, 9])
    cells = spec.list_cells("paper", "test", rows=["agf", "gfsa"], columns=["heartbeat"])
    found = [(c.experiment.seed, c.row, c.experiment.protocol) for c in cells]
    assert found == [(s, r, "test") for s in (7, 9) for r in ("agf", "gfsa")]
    (cell,) = spec.list_cells("paper", "test", [4], ["agf"], ["heartbeat"])
    config = plan_configs([cell.experiment])[cell.experiment]
    assert config["data"]["init_args"]["protocol"] == config["run"]["protocol"] == "test"
