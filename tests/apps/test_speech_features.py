"""What the network hears: speechbrain's filterbank, whatever it is padded with, and its moments."""

import pytest
import torch
from attention_speech.augment import Masks, augment
from attention_speech.features import HOP, Bank, Decibels, Features, Normalisation, frames, real
from hypothesis import given
from hypothesis import strategies as st
from speechbrain.lobes.features import Fbank

LENGTHS = torch.tensor([2507, 1600, 171, 1, 0])
NO_MASKS = Masks(0, 0, 0, 0, 0)


def padded(lengths: torch.Tensor, size: int) -> torch.Tensor:
    waves = torch.randn(len(lengths), size)
    return waves * (torch.arange(size) < lengths[:, None])


@pytest.mark.parametrize("bank", [Bank(), Bank(bands=40), Bank(n_fft=512, window_ms=32.0)])
def test_decibels_are_those_of_speechbrain(bank: Bank) -> None:
    waves = torch.randn(3, 1700)
    theirs = Fbank(n_mels=bank.bands, n_fft=bank.n_fft, win_length=bank.window_ms)(waves)
    ours, number = Decibels(bank)(waves, torch.tensor([1700] * 3))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    assert number.tolist() == [theirs.shape[1]] * 3


@pytest.mark.parametrize("bank", [Bank(), Bank(bands=23, n_fft=512, window_ms=32.0)])
def test_padding_changes_no_feature(bank: Bank) -> None:
    waves = padded(LENGTHS, 2507)
    waves[1, 1599] = 50.0  # loud at its end: behind it, half a window is louder than all the rest
    features = Features(bank, NO_MASKS).eval()
    x, number = features(waves, LENGTHS)
    for i, length in enumerate(LENGTHS):
        alone, one = features(waves[i : i + 1, :length], length[None])
        assert one == number[i] == 1 + length // HOP
        torch.testing.assert_close(x[i, :one], alone[0], atol=1e-5, rtol=1e-5)
        assert (x[i, one:] == 0).all()
    assert x.isfinite().all()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_an_utterance_has_mean_0_and_deviation_1(lengths: list[int]) -> None:
    number = torch.tensor(lengths)
    x = 40 * torch.randn(len(lengths), max(lengths), 3) - 30
    found = Normalisation(3, "utterance")(x, number)
    for i, n in enumerate(lengths):
        own = x[i, :n].double()
        deviation = own.var(0, unbiased=False).sqrt().clamp(min=1e-5)
        expected = (own - own.mean(0)) / deviation
        torch.testing.assert_close(found[i, :n].double(), expected, atol=1e-4, rtol=1e-4)


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4))
def test_gathered_moments_are_those_of_all_frames(batches: list[list[int]]) -> None:
    normalise = Normalisation(3, "global")
    seen = []
    for lengths in batches:
        number = torch.tensor(lengths)
        x = 20 * torch.randn(len(lengths), max(lengths), 3) - 50
        normalise.gather(x, number)
        seen.append(x[real(number, x.shape[1])].double())
    frames_seen = torch.cat(seen)
    assert normalise.count == len(frames_seen)
    torch.testing.assert_close(normalise.mean.double(), frames_seen.mean(0), rtol=1e-4, atol=0)
    variance = frames_seen.var(0, unbiased=False)
    torch.testing.assert_close(normalise.variance.double(), variance, rtol=1e-3, atol=1e-3)


def test_gathered_moments_are_in_the_checkpoint_and_wait_until_asked_for() -> None:
    first = Features(Bank(bands=7, normalise="global"), NO_MASKS).train()
    waves, lengths = padded(LENGTHS, 2507), LENGTHS
    before, _ = first(waves, lengths)
    raw, _ = first.decibels(waves, lengths)
    torch.testing.assert_close(before, raw)  # nothing is gathered yet
    after, _ = first(waves, lengths, gather=True)
    assert not torch.allclose(after, raw)
    second = Features(Bank(bands=7, normalise="global"), NO_MASKS)
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second(waves, lengths)[0], first(waves, lengths)[0])
    assert set(Features(Bank(), NO_MASKS).state_dict()) == set()


def test_masks_are_of_the_mean_and_narrower_than_they_may_be() -> None:
    x, number = torch.ones(50, 60, 11), torch.full((50,), 60)
    in_time = augment(x, number, Masks(0, 0, 0, 1, 5))[:, :, 0] == 0
    in_band = augment(x, number, Masks(0, 1, 4, 0, 0))[:, 0] == 0
    for masked, width in ((in_time, 5), (in_band, 4)):
        assert {int(n) for n in masked.sum(1)} == set(range(width))
        edges = masked.int().diff(dim=1).abs().sum(1)
        assert edges.max() <= 2  # in one piece
    assert augment(x, number, NO_MASKS) is x or (augment(x, number, NO_MASKS) == x).all()


def test_what_is_no_frame_is_neither_warped_nor_masked_into_one() -> None:
    number = torch.tensor([40, 23, 8, 1])
    x = (1 + torch.arange(40.0))[None, :, None].expand(4, 40, 3) * real(number, 40)[..., None]
    for _ in range(20):
        warped = augment(x, number, Masks(5, 0, 0, 0, 0))
        steps = warped.diff(dim=1)
        for i, n in enumerate(number):
            assert (warped[i, n:] == 0).all()
            assert (warped[i, 0] == 1).all()
            torch.testing.assert_close(warped[i, n - 1], x[i, n - 1])
            assert (steps[i, : n - 1] >= 0).all()  # time goes on
    assert not torch.equal(warped[0], x[0])
    assert torch.equal(warped[2], x[2])  # too short for a warp of 5
    masked = augment(x, number, Masks(5, 2, 3, 4, 9))
    assert (masked[~real(number, 40)] == 0).all()


def test_augmentation_is_for_training_alone() -> None:
    features = Features(Bank(bands=7), Masks())
    waves = torch.randn(2, 3000), torch.tensor([3000, 2000])
    augmented, plain = features.train()(*waves)[0], features.eval()(*waves)[0]
    assert not torch.equal(augmented, plain)
    torch.testing.assert_close(features(*waves)[0], plain)


def test_half_precision_changes_no_feature() -> None:
    features, waves = Features(Bank(bands=7), Masks()).eval(), torch.randn(2, 3000)
    with torch.autocast("cpu", torch.bfloat16):
        half, _ = features(waves, torch.tensor([3000, 2000]))
    torch.testing.assert_close(half, features(waves, torch.tensor([3000, 2000]))[0])


@pytest.mark.parametrize("samples", [0, 1, 159, 160, 161, 320])
def test_frames_count_as_the_transform_does(samples: int) -> None:
    number = torch.tensor([samples])
    x, found = Decibels(Bank())(torch.randn(1, samples), number)
    assert frames(number) == found == x.shape[1]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"normalise": "batch"}, "normalise"),
        ({"window_ms": 32.0}, "window_ms"),
        ({"bands": 300}, "bands"),
    ],
)
def test_a_bank_that_does_not_fit_is_refused(arguments: dict, named: str) -> None:
    with pytest.raises(ValueError, match=rf"model\.bank: {named}"):
        Bank(**arguments)
