"""The overlays and downloads of the graph app beside what papers and sites say."""

import pytest
import torch

from tests.apps.cases import GRAPH


@pytest.mark.parametrize(("data", "backbone", "method", "count"), [
    ("zinc", "graphormer_slim", "plain", 489_481),
    ("zinc", "graphormer_slim", "gfsa", 489_577),
    ("zinc", "graphormer_slim", "gfsa_even", 489_529),
    ("pcqm4mv2", "graphormer_base", "plain", 48_268_097),  # printed: 48.3M
    ("pcqm4mv2", "graphormer_base", "gfsa", 48_268_097 + 12 * 32),
    ("pcqm4mv2", "graphormer_base_v1", "plain", 47_085_377),
])  # fmt: skip
def test_a_network_has_the_parameters_of_the_released_one(data, backbone, method, count) -> None:
    with torch.device("meta"):
        model = GRAPH.model(data=data, backbone=backbone, method=method)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == count
