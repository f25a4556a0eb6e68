"""The overlays and models of the vision app beside the numbers that papers print."""

import pytest
import torch
import yaml
from attention_vision import APP
from experiment_kit.cli import AppCLI
from experiment_kit.diagnostics.efficiency import count_macs, count_parameters
from experiment_kit.papers.spec import find_spec
from experiment_kit.papers.values import load_table

from tests.apps.cases import VISION

EXTRA = {
    "deit_small": {"gfsa": 72, "gfsa_even": 36, "featscale": 9_216, "layerscale": 2 * 12 * 384}
    | {"reattention": 12 * (6 * 6 + 6 + 2 * 6)}
    | dict.fromkeys(["contranorm", "centered", "hat", "late_class_token"], 0),
    "deit_small_24": {"attnscale": 144, "featscale": 18_432},
    "cait_xxs24": {"attnscale": 96, "featscale": 9_216},
    "cait_s24": {"gfsa": 192, "featscale": 18_432},
    "swin_small": {"attnscale": 282, "featscale": 18_048},
    "vit_tiny": {"sharpening": -440_064},
    "vit_tiny_48": {"smoothing": -4 * 440_064},
}


@pytest.mark.parametrize(
    ("backbone", "method"), [(name, method) for name in EXTRA for method in EXTRA[name]]
)
def test_a_method_adds_the_printed_parameters(backbone: str, method: str) -> None:
    def count(method: str) -> int:
        data = "cifar100" if backbone.startswith("vit") else "imagenet_1k"
        with torch.device("meta"):
            model = VISION.model(backbone=backbone, method=method, data=data).model
        return sum(p.numel() for p in model.parameters() if p.requires_grad)

    assert count(method) - count("plain") == EXTRA[backbone][method]


def test_agf_per_dataset_is_the_papers_table_12() -> None:
    rows = yaml.safe_load((VISION.folder / "method/agf.per_dataset.yaml").read_text())
    for row in load_table("agf-table-12").rows:
        name = row.about["dataset"]
        mine, layers = rows["model.kernel.init_args"][name], rows["model"][name]["layers"]
        assert layers == f"-{row.values['L']}:"
        for key in ("K", "gamma", "a", "b"):
            assert mine[key] == row.values[key]


@pytest.mark.parametrize(
    "row",
    ["baseline-deit_s-DeiT", "attnscale-deit_s-DeiT-2", "featscale-cait_s", "baseline-swin_s"],
)
def test_a_model_has_the_printed_size_and_multiply_adds(row: str) -> None:
    spec = find_spec("attnscale-table-1")
    (cell,) = spec.list_cells("paper", "test", [0], [row], ["flops_g"])
    cli = AppCLI(APP, ["fit", *cell.experiment.arguments()])
    built = cli.parser.instantiate_classes(cli.config).fit
    network, inputs = built.model.efficiency_network(), built.model.example_inputs(built.data, 1)
    printed = load_table("attnscale-table-1").find_row(row).values
    millions = count_parameters(network)["parameters"] / 1e6
    assert millions == pytest.approx(printed["params_m"], abs=0.1)
    assert count_macs(network, inputs)[0] / 1e9 == pytest.approx(printed["flops_g"], rel=0.01)
