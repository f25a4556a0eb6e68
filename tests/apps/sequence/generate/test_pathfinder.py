"""Pathfinder32: a reference that draws whole images, statistics, files, retries."""

from functools import cache
from itertools import chain

import numpy as np
import pytest
from attention_sequence.generate import pathfinder
from attention_sequence.generate.pathfinder import draw_picture
from experiment_kit.errors import UserError
from PIL import Image

from tests.apps.sequence.generate.pathfinder_reference import ReferencePicture

MANY = 300


@cache
def all_pictures(contour_length: int) -> list:
    return [draw_picture(1, i, contour_length) for i in range(MANY)]


@pytest.mark.parametrize(("length", "index"), [(4, 0), (5, 1), (6, 2), (6, 3), (7, 4)])
def test_draws_what_the_reference_draws(length, index) -> None:
    drawn, slow = draw_picture(3, index, length), ReferencePicture(3, index, length)
    np.testing.assert_array_equal(drawn.image, slow.bytes())
    assert (drawn.label, drawn.origin, drawn.terminal) == (slow.label, *slow.ends)
    assert (slow.heads[slow.tails.index(drawn.origin)] == drawn.terminal) == bool(drawn.label)


# Shares of black pixels that the original semantics gave in 190 images: 65.5 % and 77 %. An image's
# mean varies by .04, so means of 300 and of 190 differ by .02 in one of a million tests.
@pytest.mark.parametrize(("length", "black"), [(14, 0.655), (6, 0.77)])
def test_background_labels_and_markers(length, black) -> None:
    pictures = all_pictures(length)
    shares = [(p.image == 0).mean() for p in pictures]
    assert abs(np.mean(shares) - black) < 0.02
    assert 0.4 < min(shares) < max(shares) < 0.95
    assert abs(np.mean([p.label for p in pictures]) - 0.5) < 5 * 0.5 / MANY**0.5
    for p in pictures:
        assert (p.image.min(), p.image.max()) == (0, 255)
        assert p.origin != p.terminal
        for y, x in (p.origin, p.terminal):
            marker = p.image[max(y - 1, 0) : y + 1, max(x - 1, 0) : x + 1]
            # a marker has 129 / 255 or more, and nothing is brighter than 153 / 255 x 2
            assert marker.min() >= int(129 / 1.2)


def test_what_does_not_fit_ends_with_a_sentence(monkeypatch) -> None:
    monkeypatch.setattr(pathfinder, "TRIES", 50)
    with pytest.raises(UserError, match="no two snakes of 60 paddles fit"):
        draw_picture(0, 0, 60)


def test_files_have_the_official_layout(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(pathfinder, "SHARD", 3)
    folder = pathfinder.write_dataset(tmp_path, 7, seed=1, contour_length=6, num_workers=1)
    assert folder == tmp_path / "pathfinder32" / "curv_baseline"
    lines = [(folder / f"metadata/{k}.npy").read_text().splitlines() for k in range(3)]
    assert list(map(len, lines)) == [3, 3, 1]
    for i, line in enumerate(chain(*lines)):
        subdir, file, number, label, *rest = line.split(" ")
        assert (subdir, file, int(number)) == (f"imgs/{i // 3}", f"sample_{i % 3}.png", i % 3)
        assert rest == ["1.0", "6", "2", "2", "0.5", "1", "1"]
        image = np.asarray(Image.open(folder / subdir / file))
        np.testing.assert_array_equal(image, all_pictures(6)[i].image)
        assert int(label) == all_pictures(6)[i].label
