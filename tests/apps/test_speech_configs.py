"""The speech app: its recipes on every backbone, and the numbers that papers print of them."""

import pytest
from attention_speech.data import Own

from tests.apps.overlays import SPEECH, leaves

BACKBONES, RECIPES, PROFILES = (SPEECH.names(kind) for kind in ("backbone", "recipe", "profile"))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("backbone", BACKBONES)
def test_every_recipe_parses_on_every_backbone(backbone: str, recipe: str) -> None:
    fit = SPEECH.parse(backbone=backbone, recipe=recipe, method="gfsa")
    assert fit.run.backbone == backbone
    sizes, own = vars(fit.model.size), SPEECH.read("backbone", backbone)["model"]["size"]
    assert {key: sizes[key] for key in ("encoder", "width", "heads")} == {
        key: own[key] for key in ("encoder", "width", "heads")
    }
    said = SPEECH.read("recipe", recipe)["model"]
    assert fit.model.size.pre_norm == said["size"]["pre_norm"]
    assert fit.model.bank.normalise == said["bank"]["normalise"]


def test_backbones_name_the_same_settings() -> None:
    assert len({frozenset(leaves(SPEECH.read("backbone", name))) for name in BACKBONES}) == 1


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_profile_ends_a_recipe_soon_with_a_warm_up_that_fits(recipe: str, profile: str) -> None:
    fit = SPEECH.parse(recipe=recipe, profile=profile)
    assert fit.trainer.max_epochs <= 100
    assert fit.model.schedule.init_args.warmup < 1
    seconds, speed = fit.data.init_args.max_seconds, fit.data.init_args.speed
    assert fit.data.init_args.batch_seconds >= seconds / min(speed, default=1)


def test_the_released_recipes_are_those_of_the_released_code() -> None:
    first = SPEECH.parse(recipe="released", backbone="transformer")
    assert first.model.optimizer.class_path == "torch.optim.Adam"
    assert (first.model.smoothing, first.model.weight_decay) == (0.0, 0.0)
    assert (first.model.masks.warp, first.data.init_args.batch_seconds) == (0, 600)
    second = SPEECH.parse(recipe="released_branchformer", backbone="branchformer_large")
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
    model = SPEECH.model(backbone=backbone, method=method)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) in (1.8, 1.9)
    held = [p for name, p in model.named_parameters() if ".filter." in name and p.requires_grad]
    assert sum(p.numel() for p in held) == coefficients
