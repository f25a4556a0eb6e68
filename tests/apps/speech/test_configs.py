"""The overlays: backbones set the same keys and can be built, and profiles fit recipes."""

import pytest
from attention_speech.decoding import BeamSearchConfig
from attention_speech.features import FbankConfig, SpecAugment

from tests.apps.cases import SPEECH

BACKBONES, RECIPES, PROFILES = map(SPEECH.names, ("backbone", "recipe", "profile"))


@pytest.mark.parametrize(("config", "bad", "message"), [
    (BeamSearchConfig, {"ctc_weight": 1.0}, r"model\.beam_search"),
    (BeamSearchConfig, {"max_decode_ratio": 0.0}, r"model\.beam_search\.min_decode_ratio and max"),
    (FbankConfig, {"window_ms": 32.0}, r"model\.fbank\.window_ms must be"),
    (FbankConfig, {"n_mels": 300}, r"model\.fbank\.n_mels must be"),
    (SpecAugment, {"warp": -1}, r"model\.spec_augment\.warp must be .* of at least 0, got -1"),
])  # fmt: skip
def test_settings_out_of_range_are_refused(config, bad: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**bad)


@pytest.mark.parametrize(("backbone", "recipe", "order", "dev"), [
    ("transformer", "", 4, 1), ("transformer", "paper", 2, 2), ("transformer_small", "small", 2, 0),
    ("branchformer_large", "", 3, 1), ("branchformer_large", "paper_branchformer", 3, 2),
])  # fmt: skip
def test_an_experiment_has_the_order_and_dev_sets_of_its_source(backbone, recipe, order, dev):
    chosen = {"data": "librispeech_100h"} if dev else {}
    chosen |= {"recipe": recipe} if recipe else {}
    for method in ("gfsa", "gfsa_even"):
        config = SPEECH.parse(backbone=backbone, method=method, **chosen)
        assert config.model.filter.init_args["K"] == order
        assert not dev or len(config.data.init_args.dev) == dev
