"""Every cell of the vision tables is made of overlays that exist, and costs what is printed."""

from pathlib import Path

import pytest
from attention_vision.__main__ import APP
from attention_vision.efficiency import parts
from experiment_kit.cli import AppCLI
from experiment_kit.efficiency import multiply_adds, parameters
from experiment_kit.launch import compose
from experiment_kit.launch.plan import plan
from experiment_kit.tables import load, load_spec

TABLES = sorted(Path("apps/vision/papers").glob("*.yaml"))


def cells(path):
    spec = load_spec(path)
    return spec.cells("paper", next(iter(spec.protocols)), [0])


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_cell_is_made_of_overlays_that_exist(path):
    for cell in cells(path):
        assert compose.of_cell(cell)


@pytest.mark.parametrize(
    ("table", "runs_of_a_row"),
    [("gfsa-table-12", 3), ("attnscale-table-3", 2)],  # three depths; three costs and a training
)
def test_every_cell_is_a_config_and_columns_of_one_model_share_a_run(table, runs_of_a_row):
    path = Path(f"apps/vision/papers/{table}.yaml")
    runs = plan(cells(path))
    assert len({r.folder for r in runs.values()}) == runs_of_a_row * len(load_spec(path).made)


@pytest.mark.parametrize(
    "row",
    ["baseline-deit_s-DeiT", "attnscale-deit_s-DeiT-2", "featscale-cait_s", "baseline-swin_s"],
)
def test_a_model_has_the_printed_size_and_multiply_adds(row):
    spec = load_spec("apps/vision/papers/attnscale-table-1.yaml")
    (cell,) = spec.cells("paper", "test", [0], [row], ["flops_g"])
    cli = AppCLI(APP, ["fit", *compose.of_cell(cell)], plan=True)
    built = cli.parser.instantiate_classes(cli.config).fit
    network, make = parts(built.model, built.data)
    printed = load("attnscale-table-1").row(row).values
    assert parameters(network)["parameters"] / 1e6 == pytest.approx(printed["params_m"], abs=0.1)
    assert multiply_adds(network, make(1))[0] / 1e9 == pytest.approx(printed["flops_g"], rel=0.01)
