"""Features: speechbrain's filterbank, independent of padding, normalized and augmented."""

import pytest
import torch
from attention_speech import features as front_end
from attention_speech.features import FbankConfig, FeatureExtractor, SpecAugment, length_mask
from hypothesis import given
from hypothesis import strategies as st
from speechbrain.lobes.features import Fbank

LENGTHS = torch.tensor([2507, 1600, 171, 1, 0])
NO_AUGMENT = SpecAugment(0, 0, 0, 0, 0)
WIDE = {"n_fft": 512, "window_ms": 32.0}


def draw_waves(lengths: torch.Tensor, size: int) -> torch.Tensor:
    return torch.randn(len(lengths), size) * length_mask(lengths, size)


@pytest.mark.parametrize("options", [{}, {"n_mels": 40}, WIDE])
def test_decibels_are_those_of_speechbrain(options) -> None:
    waves, config = torch.randn(3, 1700), FbankConfig(**options)
    theirs = Fbank(n_mels=config.n_mels, n_fft=config.n_fft, win_length=config.window_ms)(waves)
    ours, lengths = front_end.LogMelSpectrogram(config)(waves, torch.tensor([1700] * 3))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    assert lengths.tolist() == [theirs.shape[1]] * 3


@pytest.mark.parametrize("options", [{}, {"n_mels": 23, **WIDE}])
def test_padding_changes_no_feature(options) -> None:
    waves = draw_waves(LENGTHS, 2507)
    waves[1, 1599] = 50.0  # the half window after the end is louder than all the rest
    features = FeatureExtractor(FbankConfig(**options), NO_AUGMENT).eval()
    x, lengths = features(waves, LENGTHS)
    for i, length in enumerate(LENGTHS):
        alone, n = features(waves[i : i + 1, :length], length[None])
        assert n == lengths[i] == 1 + length // front_end.HOP
        torch.testing.assert_close(x[i, :n], alone[0], atol=1e-5, rtol=1e-5)
        assert (x[i, n:] == 0).all()
    assert x.isfinite().all()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_an_utterance_has_mean_0_and_deviation_1(sizes: list[int]) -> None:
    x = 40 * torch.randn(len(sizes), max(sizes), 3) - 30
    found = front_end.FeatureNormalization(3, "utterance")(x, torch.tensor(sizes))
    for i, n in enumerate(sizes):
        frames = x[i, :n].double()
        deviation = frames.var(0, unbiased=False).sqrt().clamp(min=1e-5)
        expected = (frames - frames.mean(0)) / deviation
        torch.testing.assert_close(found[i, :n].double(), expected, atol=1e-4, rtol=1e-4)


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4))
def test_global_statistics_are_those_of_all_frames(batches: list[list[int]]) -> None:
    normalization = front_end.FeatureNormalization(3, "global")
    seen = []
    for sizes in batches:
        lengths = torch.tensor(sizes)
        x = 20 * torch.randn(len(sizes), max(sizes), 3) - 50
        normalization.update_statistics(x, lengths)
        seen.append(x[length_mask(lengths, x.shape[1])].double())
    frames = torch.cat(seen)
    assert normalization.count == len(frames)
    torch.testing.assert_close(normalization.mean.double(), frames.mean(0), rtol=1e-4, atol=0)
    variance = frames.var(0, unbiased=False)
    torch.testing.assert_close(normalization.variance.double(), variance, rtol=1e-3, atol=1e-3)


def test_global_statistics_are_in_the_checkpoint() -> None:
    config = FbankConfig(n_mels=7, normalize="global")
    first = FeatureExtractor(config, NO_AUGMENT).train()
    waves, lengths = draw_waves(LENGTHS, 2507), LENGTHS
    before, _ = first(waves, lengths)
    raw, _ = first.spectrogram(waves, lengths)
    torch.testing.assert_close(before, raw)  # there are no statistics yet
    after, _ = first(waves, lengths, update_statistics=True)
    assert not torch.allclose(after, raw)
    second = FeatureExtractor(config, NO_AUGMENT)
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second(waves, lengths)[0], first(waves, lengths)[0])
    assert not FeatureExtractor(FbankConfig(), NO_AUGMENT).state_dict()


def test_augmentation_is_for_training_alone() -> None:
    features = FeatureExtractor(FbankConfig(n_mels=7), SpecAugment())
    waves = torch.randn(2, 3000), torch.tensor([3000, 2000])
    augmented, plain = features.train()(*waves)[0], features.eval()(*waves)[0]
    assert not torch.equal(augmented, plain)
    torch.testing.assert_close(features(*waves)[0], plain)

    # nor does half precision
    with torch.autocast("cpu", torch.bfloat16):
        half, _ = features(*waves)
    torch.testing.assert_close(half, features(*waves)[0])


def test_masks_are_zero_and_narrower_than_their_bound() -> None:
    x, lengths = torch.ones(50, 60, 11), torch.full((50,), 60)
    in_time = SpecAugment(0, 0, 0, 1, 5)(x, lengths)[:, :, 0] == 0
    in_freq = SpecAugment(0, 1, 4, 0, 0)(x, lengths)[:, 0] == 0
    for masked, width in ((in_time, 5), (in_freq, 4)):
        assert {int(n) for n in masked.sum(1)} == set(range(width))
        assert masked.int().diff(dim=1).abs().sum(1).max() <= 2  # in one piece
    assert torch.equal(SpecAugment(0, 0, 0, 0, 0)(x, lengths), x)


def test_padding_is_neither_warped_nor_masked() -> None:
    lengths = torch.tensor([40, 23, 8, 1])
    valid = length_mask(lengths, 40)
    x = (1 + torch.arange(40.0))[None, :, None].expand(4, 40, 3) * valid[..., None]
    for _ in range(20):
        warped = SpecAugment(5, 0, 0, 0, 0)(x, lengths)
        steps = warped.diff(dim=1)
        for i, n in enumerate(lengths):
            assert (warped[i, n:] == 0).all()
            assert (warped[i, 0] == 1).all()
            torch.testing.assert_close(warped[i, n - 1], x[i, n - 1])
            assert (steps[i, : n - 1] >= 0).all()  # the order of time is kept
    assert not torch.equal(warped[0], x[0])
    assert torch.equal(warped[2], x[2])  # too short for a warp of 5
    assert (SpecAugment(5, 2, 3, 4, 9)(x, lengths)[~valid] == 0).all()
