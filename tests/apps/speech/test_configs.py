"""The overlays: recipes on every backbone, released settings, and the runs of the tables."""

import pytest
from attention_speech.data import SyntheticDigits

from tests.apps.cases import SPEECH
from tests.apps.contract import setting_paths

BACKBONES, RECIPES, PROFILES = (SPEECH.names(kind) for kind in ("backbone", "recipe", "profile"))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("backbone", BACKBONES)
def test_every_recipe_parses_on_every_backbone(backbone: str, recipe: str) -> None:
    fit = SPEECH.parse(backbone=backbone, recipe=recipe, method="gfsa")
    assert fit.run.backbone == backbone
    parsed, network = vars(fit.model.network), SPEECH.read("backbone", backbone)["model"]["network"]
    for key in ("encoder", "dim", "num_heads"):
        assert parsed[key] == network[key]
    model = SPEECH.read("recipe", recipe)["model"]
    assert fit.model.network.pre_norm == model["network"]["pre_norm"]
    assert fit.model.fbank.normalize == model["fbank"]["normalize"]


def test_backbones_name_the_same_settings() -> None:
    assert len({frozenset(setting_paths(SPEECH.read("backbone", name))) for name in BACKBONES}) == 1


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_profile_shortens_a_recipe_and_its_warm_up(recipe: str, profile: str) -> None:
    fit = SPEECH.parse(recipe=recipe, profile=profile)
    assert fit.trainer.max_epochs <= 100
    assert fit.model.schedule.init_args.warmup < 1
    data = fit.data.init_args
    assert data.batch_seconds >= data.max_seconds / min(data.speeds, default=1)


def test_the_released_recipes_are_those_of_the_released_code() -> None:
    first = SPEECH.parse(recipe="released", backbone="transformer")
    assert first.model.optimizer.class_path == "torch.optim.Adam"
    assert (first.model.label_smoothing, first.model.weight_decay) == (0.0, 0.0)
    assert (first.model.spec_augment.warp, first.data.init_args.batch_seconds) == (0, 600)
    second = SPEECH.parse(recipe="released_branchformer", backbone="branchformer_large")
    assert second.model.optimizer.init_args.lr == 0.0008
    assert (second.model.fbank.n_fft, second.model.fbank.window_ms) == (512, 32.0)
    assert second.model.decay_norm_and_bias


@pytest.mark.parametrize(
    ("backbone", "method", "coefficients"),
    [
        ("transformer_small", "gfsa", 16),
        ("branchformer_small", "gfsa_even", 8),
        ("transformer_small", "attnscale", 16),
        ("transformer_small", "plain", 0),
    ],
)
def test_a_small_network_is_built_with_its_method(
    backbone, method, coefficients, monkeypatch
) -> None:
    monkeypatch.setattr(SyntheticDigits, "tokenizer_file", "absent.model")
    monkeypatch.setattr(SyntheticDigits, "vocab_size", 30)
    model = SPEECH.model(backbone=backbone, method=method)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) in (1.8, 1.9)
    learned = [p for name, p in model.named_parameters() if ".filter." in name and p.requires_grad]
    assert sum(p.numel() for p in learned) == coefficients
