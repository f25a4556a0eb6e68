"""One experiment by the names of its overlays: its printed config is that of its run."""

from pathlib import Path

import pytest
import yaml
from experiment_kit.app_cli import AppCLI
from experiment_kit.launch.overlays import choose_seeds, overlay_arguments
from experiment_kit.launch.plan import Experiment, load_app, plan_configs, plan_runs
from experiment_kit.papers.spec import find_spec

from tests.processes import run_allpass

FIRST = Experiment(app="sequence", data="heartbeat", backbone="uea", method="agf")


@pytest.fixture
def print_config(capsys):
    def run(*arguments: str) -> str:
        run_allpass("config", *arguments)
        return capsys.readouterr().out

    return run


def test_the_printed_config_is_that_of_the_run(print_config, tmp_path) -> None:
    text = print_config("sequence", "--data=heartbeat", "--method=agf")
    assert yaml.safe_load(text) == plan_configs([FIRST])[FIRST]
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert AppCLI(load_app("sequence"), ["fit", "-c", str(path)]).run == plan_runs([FIRST])[FIRST]
    assert not Path("runs", "sequence", "heartbeat-uea", "agf").exists()


def test_options_with_a_dot_are_the_apps_own(print_config, tmp_path) -> None:
    options = ("--model.kernel.K=9", "--model.weight_decay=0.5", "--trainer.max_epochs", "3")
    config = yaml.safe_load(print_config("sequence", "--data=heartbeat", "--method=agf", *options))
    assert config["model"]["kernel"]["init_args"]["K"] == 9
    assert config["trainer"]["max_epochs"] == 3
    assert config["model"]["weight_decay"] == 0.5  # the effective one alone
    assert "weight_decay" not in config["model"]["optimizer"]["init_args"]
    (own := tmp_path / "own.yaml").write_text("trainer: {max_epochs: 3}")
    for given in (["--args", " ".join(options)], [*options[:2], "-c", str(own)]):
        quoted = print_config("sequence", "--data=heartbeat", "--method=agf", *given)
        assert yaml.safe_load(quoted) == config


@pytest.mark.parametrize(("data", "protocol", "quirks", "seeds"), [
    ("cola", "validation", [], [0]),
    ("cola", "published", ["--data.init_args.protocol=test"], [2023]),
    ("devign", "published", [], [1234]),
])  # fmt: skip
def test_a_protocol_sets_quirks_and_seeds_by_data_set(data, protocol, quirks, seeds) -> None:
    names = {"data": data, "backbone": "bert_base", "method": "gfsa", "protocol": protocol}
    arguments = overlay_arguments("nlp", **names)
    assert [a for a in arguments if a.startswith("--data.init_args.protocol")] == quirks
    assert ("protocol/published" in arguments) == (protocol == "published")
    assert choose_seeds("nlp", [0], **names) == seeds


def test_a_protocol_of_the_app_is_one_of_its_tables_and_brings_its_seeds(monkeypatch) -> None:
    spec = find_spec("agf-table-1")
    monkeypatch.setattr("experiment_kit.papers.spec.choose_seeds", lambda *_, **__: [7, 9])
    cells = spec.list_cells("paper", "test", rows=["agf", "gfsa"], columns=["heartbeat"])
    found = [(c.experiment.seed, c.row, c.experiment.protocol) for c in cells]
    assert found == [(s, r, "test") for s in (7, 9) for r in ("agf", "gfsa")]
    (cell,) = spec.list_cells("paper", "test", [4], ["agf"], ["heartbeat"])
    config = plan_configs([cell.experiment])[cell.experiment]
    assert config["data"]["init_args"]["protocol"] == config["run"]["protocol"] == "test"
