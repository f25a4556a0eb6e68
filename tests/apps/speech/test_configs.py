"""The overlays: profiles, released settings, and small networks with their methods."""

import pytest
from attention_speech.data import SyntheticDigits

from tests.apps.cases import SPEECH
from tests.apps.contract import setting_paths

BACKBONES, RECIPES, PROFILES = map(SPEECH.names, ("backbone", "recipe", "profile"))


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
