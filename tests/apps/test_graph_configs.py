"""The graph app: every overlay parses with the others, stays small, and says what it is for."""

import inspect
import pydoc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from attention_graph.__main__ import APP
from experiment_kit.cli import AppCLI
from experiment_kit.launch import compose
from experiment_kit.launch.listing import whereabouts

CONFIGS = Path("apps/graph/configs")
METHODS, DATA, BACKBONES, RECIPES, PROFILES = (
    compose.names("graph", kind) for kind in ("method", "data", "backbone", "recipe", "profile")
)
DEFAULT = {"data": "zinc", "backbone": "graphormer_slim", "method": "plain"}
SCALE = {  # what a profile may change
    *("max_epochs", "max_steps", "check_val_every_n_epoch", "precision", "warmup", "batch_size"),
    *("limit_train_batches", "limit_val_batches", "limit_test_batches", "every_n_steps", "profile"),
}


@cache
def cli() -> AppCLI:
    return AppCLI(APP, ["fit", *compose.arguments("graph", **DEFAULT)], plan=True)


def parse(*extra: str, **chosen: str):
    arguments = compose.arguments("graph", extra, **(DEFAULT | chosen))
    return cli().parser.parse_args(["fit", *arguments])


def read(kind: str, name: str) -> dict:
    return yaml.safe_load((CONFIGS / kind / f"{name}.yaml").read_text())


def leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not isinstance(value, dict):
        yield path
        return
    for key, part in value.items():
        yield from leaves(part, (*path, key))


@pytest.mark.parametrize("data", DATA)
def test_every_data_set_parses(data: str) -> None:
    fit = parse(data=data, profile="small").fit
    assert (fit.run.data, fit.run.profile) == (data, "small")
    assert fit.data.init_args.name == data


@pytest.mark.parametrize("data", DATA)
def test_every_data_set_says_where_it_is_or_how_to_have_it(data: str, monkeypatch) -> None:
    monkeypatch.delenv("DATA_DIR", raising=False)
    place = whereabouts("graph", data)
    assert isinstance(place, Path) or "set DATA_DIR" in place


@pytest.mark.parametrize("method", METHODS)
def test_every_method_parses(method: str) -> None:
    run = parse(method=method, profile="smoke").fit.run
    assert (run.method, run.profile) == (method, "smoke")


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("backbone", BACKBONES)
def test_every_recipe_parses_on_every_backbone(backbone: str, recipe: str) -> None:
    fit = parse(backbone=backbone, recipe=recipe, method="gfsa").fit
    assert fit.run.backbone == backbone
    assert (
        fit.data.init_args.fidelity
        == fit.model.fidelity
        == read("recipe", recipe)["model"]["fidelity"]
    )


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=str)
def test_overlays_stay_small(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("method", METHODS)
def test_a_method_spells_out_all_arguments_of_its_slot(method: str) -> None:
    """A later class_path would keep what an earlier class had under the same names."""
    model = read("method", method)["model"]
    (slot,) = set(model) - {"layers"}
    accepted = set(inspect.signature(pydoc.locate(model[slot]["class_path"])).parameters)
    assert set(model[slot].get("init_args", {})) == accepted - {"dim", "num_heads", "eps"}


def test_recipes_name_the_same_settings() -> None:
    """What one recipe sets and another leaves would be kept where both are given."""
    assert len({frozenset(leaves(read("recipe", name))) for name in RECIPES}) == 1


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_changes_the_scale_alone(profile: str) -> None:
    assert {path[-1] for path in leaves(read("profile", profile))} <= SCALE


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.tuned.yaml")), ids=str)
def test_tuned_rows_are_data_sets(path: Path) -> None:
    for rows in yaml.safe_load(path.read_text()).values():
        assert {*rows} <= {*DATA}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_profile_ends_a_recipe_by_epochs_with_a_warm_up_that_fits(
    recipe: str, profile: str
) -> None:
    fit = parse(recipe=recipe, profile=profile).fit
    assert fit.trainer.max_epochs <= 100
    assert fit.trainer.max_steps == -1
    assert fit.trainer.check_val_every_n_epoch == 1
    assert fit.model.schedule.init_args.warmup < 1


def test_the_recipe_of_zinc_is_that_of_the_released_script() -> None:
    fit = parse(recipe="zinc", method="gfsa").fit
    graphs, steps = 10_000, fit.trainer.max_steps
    assert steps / (graphs // fit.data.init_args.batch_size + 1) == 10_000  # epochs
    assert fit.model.schedule.init_args.warmup == steps / 10
    assert fit.model.filter.init_args.K == 2
    assert fit.model.decay_all


@pytest.mark.parametrize(
    ("method", "parameters"), [("plain", 489_481), ("gfsa", 489_577), ("gfsa_even", 489_529)]
)
def test_the_slim_network_has_the_parameters_of_the_released_one(
    method: str, parameters: int
) -> None:
    model = cli().parser.instantiate_classes(parse(method=method)).fit.model
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == parameters
