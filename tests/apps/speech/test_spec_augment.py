"""SpecAugment: masks within valid frames, a warp that keeps the order of time."""

import pytest
import torch
from attention_speech.features import length_mask
from attention_speech.spec_augment import SpecAugment


def test_masks_are_zero_and_narrower_than_their_bound() -> None:
    x, lengths = torch.ones(50, 60, 11), torch.full((50,), 60)
    in_time = SpecAugment(0, 0, 0, 1, 5)(x, lengths)[:, :, 0] == 0
    in_freq = SpecAugment(0, 1, 4, 0, 0)(x, lengths)[:, 0] == 0
    for masked, width in ((in_time, 5), (in_freq, 4)):
        assert {int(n) for n in masked.sum(1)} == set(range(width))
        edges = masked.int().diff(dim=1).abs().sum(1)
        assert edges.max() <= 2  # in one piece
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
    masked = SpecAugment(5, 2, 3, 4, 9)(x, lengths)
    assert (masked[~valid] == 0).all()


def test_negative_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.spec_augment\.warp must not be negative, got -1"):
        SpecAugment(warp=-1)
