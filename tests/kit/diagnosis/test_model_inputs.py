"""Inputs of diagnosed models: from files and folders, made here, or refused in a sentence."""

import numpy as np
import pytest
import torch
from experiment_kit.diagnosis.model_inputs import draw_token_ids, find_samples, make_image
from experiment_kit.errors import UserError
from PIL import Image


def test_files_and_folders_are_read_in_the_order_of_names(tmp_path) -> None:
    for i, name in enumerate(("b.png", "a.jpg", "c/d.WEBP", ".git/e.png")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (i + 3, 5)).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("one\n\n  \ntwo\nth\u2028ree\n", "utf-8-sig")
    images, sentence = find_samples([str(tmp_path), str(tmp_path / "b.png")], "image", 9)
    assert [image.size for image in images] == [(4, 5), (3, 5), (5, 5), (3, 5)]
    assert {image.mode for image in images} == {"RGB"}
    assert str(tmp_path) in sentence
    assert [image.size[0] for image in find_samples([str(tmp_path)] * 2, "image", 2)[0]] == [4, 4]
    assert find_samples([str(tmp_path / "notes.txt")], "text", 2)[0] == ["one", "two"]
    assert find_samples([str(tmp_path)], "text", 9)[0] == ["one", "two", "th\u2028ree"]


@pytest.mark.parametrize(("name", "kind", "sentence"), [
    ("a.png", "text", "a.png, line 1, character 1: not UTF-8"),
    ("a.txt", "image", "a.txt cannot be read: "),
    ("damaged.wav", "recording", "damaged.wav"),
    ("blank.txt", "text", "blank.txt holds no texts"),
    ("a.jsonl", "text", "a.jsonl may have a header or labels: write a .txt"),
    ("none", "image", "none does not exist"),
    ("empty", "image", "empty is a folder without images"),
])  # fmt: skip
def test_a_file_of_another_kind_is_refused(name, kind, sentence, tmp_path) -> None:
    make_image(0, 8).save(tmp_path / "a.png")
    (tmp_path / "empty").mkdir()
    for file in ("a.txt", "a.jsonl", "damaged.wav", "blank.txt"):
        (tmp_path / file).write_bytes(b"\n \n" if file == "blank.txt" else b"RIFF")
    with pytest.raises(UserError, match=sentence):
        find_samples([str(tmp_path / name)], kind, 8)


def test_what_is_made_is_the_same_at_each_call() -> None:
    for kind in ("image", "text", "recording"):
        (first, sentence), (again, _) = (find_samples([], kind, 3) for _ in range(2))
        assert len(first) == 3
        assert sentence.endswith(".")
        for a, b in zip(first, again, strict=True):
            assert torch.equal(a, b) if kind == "recording" else a == b
        assert len({image.tobytes() if kind == "image" else str(image) for image in first}) == 3
    assert torch.equal(draw_token_ids(7, 2, 5), draw_token_ids(7, 2, 5))


def test_images_have_the_spectrum_of_natural_ones() -> None:
    """Power falls as 1 / f^2: by a factor of 16 between frequencies that are four times apart."""
    power = np.zeros((256, 256))
    for seed in range(4):
        gray = np.asarray(make_image(seed), dtype=float).mean(-1)
        power += np.abs(np.fft.fft2(gray - gray.mean())) ** 2
    f = np.hypot(*np.meshgrid(*[np.fft.fftfreq(256)] * 2))
    low, high = (power[(f > x) & (f < 1.2 * x)].mean() for x in (0.02, 0.08))
    assert 10 < low / high < 22
