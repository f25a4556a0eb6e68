"""The overlays of every app parse with the others, stay small, and mix without leftovers."""

import inspect
import pydoc
from itertools import product
from pathlib import Path

import pytest
from experiment_kit.launch.listing import whereabouts

from tests.apps.overlays import GRAPH, NLP, SEQUENCE, SPEECH, VISION, Overlays, leaves

APPS = GRAPH, NLP, SEQUENCE, SPEECH, VISION
PLAIN = GRAPH, NLP, SPEECH  # whose overlays of all kinds go together, with slots for methods alone
ALIKE = GRAPH, SPEECH  # whose recipes and data sets are of one kind besides

SCALE = {  # what a profile may change
    *("max_epochs", "limit_train_batches", "limit_val_batches", "limit_test_batches", "warmup"),
    *("every_n_steps", "profile"),
}
OWN_SCALE = {
    "graph": {"max_steps", "check_val_every_n_epoch", "precision", "batch_size"},
    "speech": {"batch_seconds", "max_batch_size", "beam_size"},
}


def each(*kinds: str, apps: tuple[Overlays, ...] = PLAIN):
    """A case for every app and every choice of its overlays of these kinds."""
    return [
        pytest.param(app, *names, id="-".join((app.app.name, *names)))
        for app in apps
        for names in product(*map(app.names, kinds))
    ]


@pytest.mark.parametrize(("app", "data"), each("data"))
def test_every_data_set_parses(app: Overlays, data: str) -> None:
    fit = app.parse(data=data, profile="small")
    assert (fit.run.data, fit.run.profile) == (data, "small")


@pytest.mark.parametrize(("app", "data"), each("data", apps=APPS))
def test_every_data_set_says_where_it_is_or_how_to_have_it(app, data: str, monkeypatch) -> None:
    monkeypatch.delenv("DATA_DIR", raising=False)
    place = whereabouts(app.app.name, data)
    assert isinstance(place, Path) or "set DATA_DIR" in place or "pip install" in place


@pytest.mark.parametrize(("app", "profile", "method"), each("profile", "method"))
def test_every_method_parses_under_every_profile(app: Overlays, profile: str, method: str) -> None:
    run = app.parse(method=method, profile=profile).run
    assert (run.method, run.profile) == (method, profile)


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=str(path)) for a in APPS for path in a.folder.rglob("*.yaml")]
)
def test_overlays_stay_small(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(("app", "method"), each("method"))
def test_a_method_spells_out_all_arguments_of_its_slot(app: Overlays, method: str) -> None:
    """A later class_path would keep what an earlier class had under the same names."""
    model = app.read("method", method)["model"]
    (slot,) = set(model) - {"layers", "position"}
    accepted = set(inspect.signature(pydoc.locate(model[slot]["class_path"])).parameters)
    assert set(model[slot].get("init_args", {})) == accepted - {"dim", "num_heads", "eps"}


@pytest.mark.parametrize(("app", "data"), each("data", apps=ALIKE))
def test_an_overlay_names_its_own_data_set(app: Overlays, data: str) -> None:
    assert app.read("data", data)["data"]["init_args"]["name"] == data


@pytest.mark.parametrize("app", ALIKE)
def test_recipes_name_the_same_settings(app: Overlays) -> None:
    """What one recipe sets and another leaves would be kept where both are given."""
    recipes = {frozenset(leaves(app.read("recipe", name))) for name in app.names("recipe")}
    assert len(recipes) == 1


@pytest.mark.parametrize(("app", "recipe"), each("recipe", apps=(*PLAIN, VISION)))
def test_no_recipe_asks_for_what_lightning_refuses(app: Overlays, recipe: str) -> None:
    """A fused optimiser unscales gradients itself, after they would have been clipped."""
    fit = app.parse(recipe=recipe)
    fused = fit.model.optimizer.init_args.get("fused")
    assert not (fused and fit.trainer.gradient_clip_val and "mixed" in str(fit.trainer.precision))


@pytest.mark.parametrize(("app", "profile"), each("profile", apps=ALIKE))
def test_a_profile_changes_the_scale_alone(app: Overlays, profile: str) -> None:
    changed = {path[-1] for path in leaves(app.read("profile", profile))}
    assert changed <= SCALE | OWN_SCALE[app.app.name]
