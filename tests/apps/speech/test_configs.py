"""Settings of decoding and features that are out of range."""

import pytest
from attention_speech.decoding import BeamSearchConfig
from attention_speech.features import FbankConfig, SpecAugment


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
