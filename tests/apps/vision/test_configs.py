"""The overlays and models of the vision app beside the numbers that papers print."""

from collections.abc import Iterator
from functools import cache
from unittest.mock import patch

import pytest
import torch
from experiment_kit.papers.spec import find_spec
from experiment_kit.papers.values import load_table
from experiment_kit.training.efficiency import count_macs, count_parameters

from tests.apps.cases import VISION

EXTRA = {
    "deit_small": {"gfsa": 72, "gfsa_even": 36, "featscale": 9_216, "layerscale": 2 * 12 * 384}
    | {"reattention": 12 * (6 * 6 + 6 + 2 * 6)}
    | dict.fromkeys(["contranorm", "centered", "hat", "late_class_token"], 0),
    "cait_xxs24": {"attnscale": 96, "featscale": 9_216},
    "cait_s24": {"gfsa": 192},
    "swin_small": {"attnscale": 282, "gfsa": 282, "featscale": 18_048},
    "vit_tiny": {"sharpening": -440_064, "smoothing": -440_064},
}


@pytest.fixture(autouse=True)
def build_on_meta() -> Iterator[None]:
    """Give no weights to what is built; timm would clip them, which is slow even so."""
    with torch.device("meta"), patch("timm.layers.weight_init._trunc_normal_"):
        yield


@cache
def count_trained(backbone: str, method: str) -> int:
    data = "cifar100" if backbone.startswith("vit_tiny") else "imagenet_1k"
    model = VISION.model(backbone=backbone, method=method, data=data).model
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("backbone", "method"), [(name, method) for name in EXTRA for method in EXTRA[name]]
)
def test_a_method_adds_the_printed_parameters(backbone: str, method: str) -> None:
    added = count_trained(backbone, method) - count_trained(backbone, "plain")
    assert added == EXTRA[backbone][method]


# trainable parameters, beside what the papers print of them in millions, or of their size in MiB
BACKBONES = {
    "deit_tiny": (5_717_416, None), "deit_tiny_16": (7_496_872, None),
    "deit_tiny_24": (11_055_784, None), "deit_small": (22_050_664, 22.0),
    "deit_small_16": (29_148_520, None), "deit_small_24": (43_344_232, 43.3),
    "cait_xxs24": (11_956_264, 12.0), "cait_s24": (46_916_200, 46.9),
    "swin_tiny": (28_288_354, None), "swin_small": (49_606_258, 49.6),
    "swin_base": (87_768_224, 88), "vit_tiny": (5_403_172, None),
    "vit_tiny_24": (10_734_628, None), "vit_tiny_48": (21_397_540, None),
    "vit_small_16": (48_754_408, 49), "vit_base_16": (86_567_656, 86),
    "deit_small_distilled": (22_436_432, 22), "deepvit_24": (36_229_480, 36),
    "resnet152": (60_192_808, 230), "densenet201": (20_013_928, 77),
}  # fmt: skip
ROWS = "baseline-deit_s-DeiT", "attnscale-deit_s-DeiT-2", "featscale-cait_s", "baseline-swin_s"


@pytest.mark.parametrize("backbone", VISION.names("backbone"))
def test_a_backbone_has_the_printed_parameters(backbone: str) -> None:
    count = count_trained(backbone, "plain")
    expected, printed = BACKBONES[backbone]
    assert count == expected
    size = 4 * count / 2**20 if backbone in {"resnet152", "densenet201"} else count / 1e6
    assert printed is None or size == pytest.approx(printed, abs=1)


@pytest.mark.parametrize("row", ROWS)
def test_a_model_has_the_printed_size_and_multiply_adds(row: str) -> None:
    (cell,) = find_spec("attnscale-table-1").list_cells("paper", "test", [0], [row], ["flops_g"])
    built = VISION.build(cell.experiment.arguments())
    network, inputs = built.model.efficiency_network(), built.model.example_inputs(built.data, 1)
    printed = load_table("attnscale-table-1").find_row(row).values
    millions = count_parameters(network)["parameters"] / 1e6
    assert millions == pytest.approx(printed["params_m"], abs=0.1)
    assert count_macs(network, inputs) / 1e9 == pytest.approx(printed["flops_g"], rel=0.01)
