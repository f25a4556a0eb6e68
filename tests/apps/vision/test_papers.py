"""A model of the vision tables has the printed size and multiply-adds."""

import pytest
from attention_vision import APP
from experiment_kit.cli import AppCLI
from experiment_kit.diagnostics.efficiency import count_macs, count_parameters
from experiment_kit.papers.spec import find_spec
from experiment_kit.papers.values import load_table


@pytest.mark.parametrize(
    "row",
    ["baseline-deit_s-DeiT", "attnscale-deit_s-DeiT-2", "featscale-cait_s", "baseline-swin_s"],
)
def test_a_model_has_the_printed_size_and_multiply_adds(row):
    spec = find_spec("attnscale-table-1")
    (cell,) = spec.list_cells("paper", "test", [0], [row], ["flops_g"])
    cli = AppCLI(APP, ["fit", *cell.experiment.arguments()])
    built = cli.parser.instantiate_classes(cli.config).fit
    network, inputs = built.model.efficiency_network(), built.model.example_inputs(built.data, 1)
    printed = load_table("attnscale-table-1").find_row(row).values
    millions = count_parameters(network)["parameters"] / 1e6
    assert millions == pytest.approx(printed["params_m"], abs=0.1)
    assert count_macs(network, inputs)[0] / 1e9 == pytest.approx(printed["flops_g"], rel=0.01)
