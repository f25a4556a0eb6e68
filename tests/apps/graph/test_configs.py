"""The overlays of the graph app beside the numbers that papers print."""

import pytest

from tests.apps.overlays import GRAPH

RECIPES, PROFILES = (GRAPH.names(kind) for kind in ("recipe", "profile"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_model_and_its_data_share_a_variant(recipe: str) -> None:
    fit = GRAPH.parse(recipe=recipe)
    expected = GRAPH.read("recipe", recipe)["model"]["variant"]
    assert fit.data.init_args.variant == fit.model.variant == expected


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_profile_ends_a_recipe_by_epochs_with_a_warm_up_that_fits(
    recipe: str, profile: str
) -> None:
    fit = GRAPH.parse(recipe=recipe, profile=profile)
    assert fit.trainer.max_epochs <= 100
    assert fit.trainer.max_steps == -1
    assert fit.trainer.check_val_every_n_epoch == 1
    assert fit.model.schedule.init_args.warmup < 1


def test_the_recipe_of_zinc_is_that_of_the_released_script() -> None:
    fit = GRAPH.parse(recipe="zinc", method="gfsa")
    graphs, steps = 10_000, fit.trainer.max_steps
    assert steps / (graphs // fit.data.init_args.batch_size + 1) == 10_000  # epochs
    assert fit.model.schedule.init_args.warmup == steps / 10
    assert fit.model.filter.init_args.K == 2
    assert fit.model.decay_norm_and_bias


@pytest.mark.parametrize(
    ("method", "parameters"), [("plain", 489_481), ("gfsa", 489_577), ("gfsa_even", 489_529)]
)
def test_the_slim_network_has_the_parameters_of_the_released_one(
    method: str, parameters: int
) -> None:
    model = GRAPH.model(method=method)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == parameters
