"""Pathfinder32: a reference that draws whole images, statistics, files, retries."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import cache
from itertools import chain

import numpy as np
import pytest
from attention_sequence.generate import __main__ as command
from attention_sequence.generate import pathfinder
from attention_sequence.generate.paddles import build_patches, draw_disc, draw_markers, draw_paddles
from attention_sequence.generate.pathfinder import dataset_folder, draw_picture
from experiment_kit.errors import UserError
from PIL import Image

from tests.apps.sequence.generate.pathfinder_reference import ReferencePicture, lanczos

MANY = 300


@cache
def all_pictures(contour_length: int) -> list:
    return [draw_picture(1, i, contour_length) for i in range(MANY)]


@cache
def reference_picture(index: int, contour_length: int) -> ReferencePicture:
    return ReferencePicture(3, index, contour_length)


@pytest.mark.parametrize(("length", "index"), [(4, 0), (5, 1), (6, 2), (6, 3), (7, 4)])
def test_draws_what_the_reference_draws(length, index) -> None:
    drawn, slow = draw_picture(3, index, length), reference_picture(index, length)
    np.testing.assert_array_equal(drawn.image, slow.bytes())
    assert (drawn.label, drawn.origin, drawn.terminal) == (slow.label, *slow.ends)
    snake = slow.tails.index(drawn.origin)
    assert (slow.heads[snake] == drawn.terminal) == bool(drawn.label)


def test_lanczos_is_that_of_its_definition() -> None:
    lines, masks = draw_paddles()
    for drawn in (lines, masks):
        assert drawn.max() > 0
    np.testing.assert_array_equal(
        draw_markers()[9, 30], lanczos(255.0 * draw_disc(64, (18, 60), 3.0), 32)
    )
    line = np.zeros((17, 17))
    line[8, 8:13] = 255
    np.testing.assert_array_equal(lines[4, 8], lanczos(line, 9))


# Shares of black pixels that the original semantics gave in 190 images: 65.5 % and 77 %. The mean
# of an image varies by .04, so means of 300 and of 190 differ by .02 in one of a million tests.
@pytest.mark.parametrize(("length", "black"), [(14, 0.655), (6, 0.77)])
def test_share_of_background(length, black) -> None:
    shares = [(p.image == 0).mean() for p in all_pictures(length)]
    assert abs(np.mean(shares) - black) < 0.02
    assert 0.4 < min(shares) < max(shares) < 0.95
    assert all(p.image.max() == 255 and p.image.min() == 0 for p in all_pictures(length))


def test_labels_are_balanced() -> None:
    share = np.mean([p.label for p in all_pictures(6)])
    assert abs(share - 0.5) < 5 * 0.5 / MANY**0.5


def test_markers_are_there_and_discs() -> None:
    for p in all_pictures(6):
        for y, x in (p.origin, p.terminal):
            assert p.origin != p.terminal
            marker = p.image[max(y - 1, 0) : y + 1, max(x - 1, 0) : x + 1]
            # of a marker 129 / 255 or more, and nothing is brighter than 153 / 255 x 2
            assert marker.min() >= int(129 / 1.2)
    assert all(draw_markers()[y, x, y, x] == 255 for y in range(1, 31) for x in range(1, 31))


def test_distractors_are_brighter_by_a_third() -> None:
    targets, distractors, masks = build_patches()
    np.testing.assert_allclose(distractors, targets * 4 / 3, rtol=1e-6)
    assert masks.max() == 1


def test_most_distractors_find_no_place() -> None:
    placed = [reference_picture(i, 6).placed for i in (2, 3)]
    assert 0 < sum(placed) < 20  # 10 an image were asked for


def test_image_depends_on_seed_and_number_alone() -> None:
    np.testing.assert_array_equal(draw_picture(1, 7, 6).image, all_pictures(6)[7].image)
    assert (draw_picture(2, 7, 6).image != all_pictures(6)[7].image).any()
    assert len({p.image.tobytes() for p in all_pictures(6)}) == MANY


def test_what_does_not_fit_ends_with_a_sentence(monkeypatch) -> None:
    monkeypatch.setattr(pathfinder, "TRIES", 50)
    with pytest.raises(UserError, match="no two snakes of 60 paddles fit"):
        draw_picture(0, 0, 60)
    with pytest.raises(UserError, match="at least 3, got 2"):
        draw_picture(0, 0, 2)


def test_files_have_the_official_layout(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(pathfinder, "SHARD", 3)
    assert pathfinder.write_dataset(tmp_path, count=7, seed=1, contour_length=6)
    folder = tmp_path / "pathfinder32" / "curv_baseline"
    lines = [(folder / f"metadata/{k}.npy").read_text().splitlines() for k in range(3)]
    assert list(map(len, lines)) == [3, 3, 1]
    for i, line in enumerate(chain(*lines)):
        subdir, file, number, label, *rest = line.split(" ")
        assert (subdir, file, int(number)) == (f"imgs/{i // 3}", f"sample_{i % 3}.png", i % 3)
        assert rest == ["1.0", "6", "2", "2", "0.5", "1", "1"]
        image = np.asarray(Image.open(folder / subdir / file))
        np.testing.assert_array_equal(image, all_pictures(6)[i].image)
        assert int(label) == all_pictures(6)[i].label
    assert not pathfinder.write_dataset(tmp_path, count=7, seed=1, contour_length=6)


def test_whole_shards_of_an_interrupted_call_are_kept(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(pathfinder, "SHARD", 2)
    calls, draw = [], pathfinder.draw_picture

    def stopping(seed, index, length):
        calls.append(index)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return draw(seed, index, length)

    monkeypatch.setattr(pathfinder, "draw_picture", stopping)
    options = {"count": 6, "seed": 1, "contour_length": 6}
    with pytest.raises(KeyboardInterrupt):
        pathfinder.write_dataset(tmp_path, **options)
    assert not dataset_folder(tmp_path, 6).exists()
    with pytest.raises(UserError, match=r"--count=6 --seed=1.*finish it with these"):
        pathfinder.write_dataset(tmp_path, **(options | {"seed": 2}))
    assert pathfinder.write_dataset(tmp_path, **options)
    assert calls == [0, 1, 2, 3, 2, 3, 4, 5]
    names = {p.name for p in dataset_folder(tmp_path, 6).rglob("*")}
    assert not [name for name in names if "part" in name]


def test_others_are_refused_and_the_official_ones_left_alone(tmp_path, capsys) -> None:
    run = ["pathfinder", f"--out={tmp_path}", "--count=1", "--contour_length=9"]
    assert call(run) == 0
    assert call([*run, "--seed=1"]) == 2
    printed = capsys.readouterr()
    assert "curv_contour_length_9 is complete" in printed.out
    assert "was generated with --count=1 --seed=0 --contour_length=9: remove it" in printed.err
    (dataset_folder(tmp_path, 9) / "generated.json").unlink()
    assert call([*run, "--seed=1"]) == 0
    assert "not generated by this command; nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--contour_length=2", "--contour_length must be at least 3, got 2"),
        ("--count=0", "--count must be at least 1, got 0"),
        ("--seed=-1", "--seed must be at least 0, got -1"),
        ("--num_workers=x", "num_workers"),
    ],
)
def test_bad_options_get_one_sentence(option, sentence, tmp_path, capsys) -> None:
    assert call(["pathfinder", f"--out={tmp_path}", option]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert printed.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def listen_to_interrupts() -> None:
    """Undo a shell, whose background processes and their children ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_workers_and_interrupts(tmp_path) -> None:
    run = [sys.executable, "-m", "attention_sequence.generate", "pathfinder", f"--out={tmp_path}"]
    process = subprocess.Popen(
        [*run, "--count=9000", "--contour_length=6", "--num_workers=2"],
        preexec_fn=listen_to_interrupts,
    )
    part = dataset_folder(tmp_path, 6).with_name("curv_baseline.part")
    while not list(part.glob("metadata/*.npy")):
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert not dataset_folder(tmp_path, 6).exists()
    assert json.loads((part / "generated.json").read_text())["count"] == 9000
    for metadata in part.glob("metadata/*.npy"):  # what looks whole is whole
        images = list((part / "imgs" / metadata.stem).iterdir())
        assert len(images) == len(metadata.read_text().splitlines()) == 1000
        drawn = draw_picture(0, 1000 * int(metadata.stem) + 7, 6).image  # whoever drew it
        file = part / "imgs" / metadata.stem / "sample_7.png"
        np.testing.assert_array_equal(np.asarray(Image.open(file)), drawn)


def call(arguments: list[str]) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["generate", *arguments])
        patch.setattr(signal, "signal", lambda *_: None)
        try:
            command.main()
        except SystemExit as error:
            return error.code
    return 0
