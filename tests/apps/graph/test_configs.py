"""The overlays and downloads of the graph app beside what papers and sites say."""

import pytest
import torch

from tests.apps.cases import GRAPH

RECIPES, PROFILES = (GRAPH.names(kind) for kind in ("recipe", "profile"))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_profile_ends_a_recipe_by_epochs_with_a_warmup_that_fits(recipe, profile) -> None:
    fit = GRAPH.parse(data="zinc", recipe=recipe, profile=profile)
    assert fit.trainer.max_epochs <= 100
    assert fit.trainer.max_steps == -1
    assert fit.trainer.check_val_every_n_epoch == 1
    assert fit.model.schedule.init_args.warmup < 1


@pytest.mark.parametrize(
    ("data", "backbone", "method", "count"),
    [
        ("zinc", "graphormer_slim", "plain", 489_481),
        ("zinc", "graphormer_slim", "gfsa", 489_577),
        ("zinc", "graphormer_slim", "gfsa_even", 489_529),
        ("pcqm4mv2", "graphormer_base", "plain", 48_268_097),  # printed: 48.3M
        ("pcqm4mv2", "graphormer_base", "gfsa", 48_268_097 + 12 * 32),
        ("pcqm4mv2", "graphormer_base_v1", "plain", 47_085_377),
    ],
)
def test_a_network_has_the_parameters_of_the_released_one(data, backbone, method, count) -> None:
    with torch.device("meta"):
        model = GRAPH.model(data=data, backbone=backbone, method=method)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == count
