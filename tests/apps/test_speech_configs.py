"""The speech app: every overlay parses with the others, stays small, and says what it is for."""

import inspect
import pydoc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from attention_speech.__main__ import APP
from attention_speech.data import Own
from experiment_kit.cli import AppCLI
from experiment_kit.launch import compose
from experiment_kit.launch.listing import whereabouts
from jsonargparse import Namespace

CONFIGS = Path("apps/speech/configs")
METHODS, DATA, BACKBONES, RECIPES, PROFILES = (
    compose.names("speech", kind) for kind in ("method", "data", "backbone", "recipe", "profile")
)
DEFAULT = {
    "data": "own",
    "backbone": "transformer_small",
    "recipe": "small",
    "method": "plain",
}
SCALE = {  # what a profile may change
    *("max_epochs", "limit_train_batches", "limit_val_batches", "limit_test_batches", "warmup"),
    *("batch_seconds", "max_batch", "beam", "every_n_steps", "profile"),
}


@cache
def cli() -> AppCLI:
    return AppCLI(APP, ["fit", *compose.arguments("speech", **DEFAULT)], plan=True)


def parse(*extra: str, **chosen: str):
    arguments = compose.arguments("speech", extra, **(DEFAULT | chosen))
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
    place = whereabouts("speech", data)
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
    sizes, own = vars(fit.model.size), read("backbone", backbone)["model"]["size"]
    assert {key: sizes[key] for key in ("encoder", "width", "heads")} == {
        key: own[key] for key in ("encoder", "width", "heads")
    }
    said = read("recipe", recipe)["model"]
    assert fit.model.size.pre_norm == said["size"]["pre_norm"]
    assert fit.model.bank.normalise == said["bank"]["normalise"]


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
    assert len({frozenset(leaves(read("backbone", name))) for name in BACKBONES}) == 1


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_changes_the_scale_alone(profile: str) -> None:
    assert {path[-1] for path in leaves(read("profile", profile))} <= SCALE


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_profile_ends_a_recipe_soon_with_a_warm_up_that_fits(recipe: str, profile: str) -> None:
    fit = parse(recipe=recipe, profile=profile).fit
    assert fit.trainer.max_epochs <= 100
    assert fit.model.schedule.init_args.warmup < 1
    seconds, speed = fit.data.init_args.max_seconds, fit.data.init_args.speed
    assert fit.data.init_args.batch_seconds >= seconds / min(speed, default=1)


def test_the_released_recipes_are_those_of_the_released_code() -> None:
    first = parse(recipe="released", backbone="transformer").fit
    assert first.model.optimizer.class_path == "torch.optim.Adam"
    assert (first.model.smoothing, first.model.weight_decay) == (0.0, 0.0)
    assert (first.model.masks.warp, first.data.init_args.batch_seconds) == (0, 600)
    second = parse(recipe="released_branchformer", backbone="branchformer_large").fit
    assert second.model.optimizer.init_args.lr == 0.0008
    assert (second.model.bank.n_fft, second.model.bank.window_ms) == (512, 32.0)
    assert second.model.decay_all


@pytest.mark.parametrize(
    ("backbone", "method", "coefficients"),
    [
        ("transformer_small", "gfsa", 16),
        ("branchformer_small", "gfsa_even", 8),
        ("transformer_small", "attnscale", 16),
        ("transformer_small", "plain", 0),
    ],
)
def test_a_small_network_is_made_with_its_method(
    backbone, method, coefficients, monkeypatch
) -> None:
    monkeypatch.setattr(Own, "tokenizer", "absent.model")
    monkeypatch.setattr(Own, "vocab_size", 30)
    fit = parse(backbone=backbone, method=method).fit
    model = cli().parser.instantiate_classes(Namespace(fit=fit, subcommand="fit")).fit.model
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) in (1.8, 1.9)
    held = [p for name, p in model.named_parameters() if ".filter." in name and p.requires_grad]
    assert sum(p.numel() for p in held) == coefficients
