"""Images of the Long Range Arena: pixels row by row, black ones too, and decoded drawings."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from attention_sequence.data import Image, Pathfinder
from attention_sequence.data import pathfinder as drawings
from experiment_kit.errors import UserError
from PIL import Image as Picture

from tests.apps.sequence.long_range_files import SPLITS, set_up, write_cifar, write_pathfinder


def test_an_image_is_its_grey_pixels_row_by_row(tmp_path) -> None:
    folder = write_cifar(tmp_path)
    data = set_up(Image("cifar10", str(tmp_path)))
    assert [len(data.splits[split]) for split in SPLITS] == [18, 2, 5]
    ids, mask, label = data.splits["val"][1]
    record = np.fromfile(folder / "data_batch_1.bin", np.uint8).reshape(-1, 3073)[19]
    for pixel in range(1024):
        red, green, blue = (int(record[1 + plane * 1024 + pixel]) for plane in range(3))
        light = 0.2989 * red + 0.5870 * green + 0.1140 * blue
        assert int(ids[pixel]) == int(255.5 * light / 255) + 1
    assert (mask.all(), label) == (True, 9)


def test_black_is_a_token_and_as_published_padding(tmp_path) -> None:
    write_cifar(tmp_path)
    right, published = (
        set_up(Image("cifar10", str(tmp_path), zero_is_padding=zero)).splits["test"]
        for zero in (False, True)
    )
    for (ids, mask, _), (raw, seen, _) in zip(right, published, strict=True):
        assert torch.equal(ids, raw + 1)
        assert mask.all()
        assert torch.equal(seen, raw > 0)
        assert not seen[0]


@pytest.fixture
def paths(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)  # the cache goes to runs/data
    return write_pathfinder(tmp_path)


def load_pathfinder(**options) -> Pathfinder:
    return set_up(Pathfinder("curv_contour_length_14", ".", **options))


def test_drawings_are_their_pixels_row_by_row_split_alike_for_every_run(paths) -> None:
    data = [load_pathfinder(seed=seed) for seed in (0, 1)]
    assert [len(data[0].splits[split]) for split in SPLITS] == [24, 3, 3]
    items, others = ([item for split in SPLITS for item in one.splits[split]] for one in data)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(items, others, strict=True))
    assert len({tuple(ids.tolist()) for ids, *_ in items}) == 30
    assert {label for *_, label in data[0].splits["train"]} == {0, 1}
    with Picture.open(paths / "imgs/0/sample_7.png") as image:
        deep = np.asarray(image).astype(np.uint16) * 257
        pixels = torch.tensor([image.getpixel((x, y)) for y in range(32) for x in range(32)])
    ((_, mask, label),) = (item for item in items if torch.equal(item[0], pixels + 1))
    assert (mask.all(), label) == (True, 1)
    Picture.fromarray(deep).save(paths / "16_bits.png")
    assert np.array_equal(drawings.decode_drawing(paths / "16_bits.png"), deep >> 8)


def test_drawings_are_decoded_once_and_again_where_one_has_changed(paths, monkeypatch) -> None:
    decoded, decode = [], drawings.decode_drawing
    monkeypatch.setattr(drawings, "decode_drawing", lambda x: decoded.append(x) or decode(x))
    assert np.array_equal(load_pathfinder().drawings, load_pathfinder().drawings)
    assert len(decoded) == 30
    os.utime(paths / "imgs/0/sample_3.png", (1, 1))
    load_pathfinder()
    assert len(decoded) == 60
    assert not list(Path("runs/data").glob(".*"))


def test_empty_drawings_are_left_out_and_counted(paths, capsys) -> None:
    (paths / "imgs/0/sample_4.png").write_bytes(b"")
    data = load_pathfinder()
    assert sum(len(data.splits[split]) for split in SPLITS) == 29
    assert "1 of 30 drawings" in capsys.readouterr().err


def test_a_bad_drawing_is_reported_in_a_sentence(paths) -> None:
    def fails(sentence: str) -> None:
        with pytest.raises(UserError, match=sentence):
            load_pathfinder()

    image, table = paths / "imgs/0/sample_5.png", paths / "metadata/0.npy"
    image.write_bytes(image.read_bytes()[:100])
    fails(r"sample_5.png cannot be read")
    Picture.new("L", (64, 16)).save(image)
    fails("sample_5.png is 64 x 16, not 32 x 32")
    lines = table.read_text()
    table.write_text(lines * 2)
    fails("metadata names drawings twice: remove copies")
    table.write_text(lines + "imgs/0 sample_1.png 30 2\n")
    fails("0.npy: row 31 is not a folder, a file, a number, a label 0 or 1, but b'imgs/0")
    table.write_text("".join(lines.splitlines(keepends=True)[:9]))
    fails("has 9 drawings; a tenth to test takes ten")
