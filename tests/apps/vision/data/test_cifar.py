"""CIFAR's binary files: records, subsets, layouts, damage."""

from pathlib import Path

import numpy as np
import pytest
import torch
from attention_vision.data import CIFAR
from experiment_kit.data.image_files import read_cifar_file
from experiment_kit.errors import UserError
from hypothesis import given
from hypothesis import strategies as st

from tests.apps.vision.data.test_base import PLAIN


def pack_records(pixels: np.ndarray, labels: np.ndarray, coarse: bool) -> bytes:
    planes = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
    before = [np.zeros(len(labels))] * coarse + [labels]
    return np.column_stack([*before, planes]).astype(np.uint8).tobytes()


@given(st.integers(1, 5), st.booleans(), st.integers(0, 2**32 - 1))
def test_records_are_read_back_as_they_were_written(tmp_path_factory, count, coarse, seed) -> None:
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (count, 32, 32, 3), np.uint8)
    labels = generator.integers(0, 100, count)
    path = tmp_path_factory.mktemp("cifar") / "x.bin"
    path.write_bytes(pack_records(pixels, labels, coarse))
    planes, found_labels = read_cifar_file(path, 1 + coarse, 100)
    assert np.array_equal(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), pixels)
    assert np.array_equal(found_labels, labels)


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    versions = {
        "cifar-100-binary": ("train.bin", "test.bin", True),
        "vision/cifar-10-batches-bin": ("data_batch_1.bin", "test_batch.bin", False),
    }
    for folder, (*files, coarse) in versions.items():
        (tmp_path / folder).mkdir(parents=True)
        for file in files:
            pixels = generator.integers(0, 256, (20, 32, 32, 3), np.uint8)
            (tmp_path / folder / file).write_bytes(pack_records(pixels, np.arange(20) % 10, coarse))
    return tmp_path


@pytest.mark.parametrize("name", ["CIFAR-10", "CIFAR-100"])
def test_a_subset_is_found_in_several_layouts(name, cifar, monkeypatch, capsys) -> None:
    monkeypatch.setenv("DATA_DIR", str(cifar))
    data = CIFAR(name, batch_size=4, val_fraction=0.5)
    data.setup("fit")
    assert len(data.splits["train"]) == len(data.splits["val"]) == 10
    assert CIFAR.find_data(name).is_dir()
    assert "has 20 of 50,000 training and 20 of 10,000 test images" in capsys.readouterr().err


@pytest.mark.parametrize(("damage", "sentence"), [
    (lambda data: data[:-7], r"train.bin has 61473 bytes, not one or more records of 3074"),
    (lambda data: b"\0" + bytes([100]) + data[2:], "record 0 has label 100, not 0 to 99"),
])  # fmt: skip
def test_a_damaged_file_is_refused(damage, sentence, cifar) -> None:
    path = cifar / "cifar-100-binary/train.bin"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=sentence):
        CIFAR("CIFAR-100", data_dir=str(cifar)).setup("fit")


def test_test_images_are_only_normalized(cifar) -> None:
    data = CIFAR("CIFAR-100", data_dir=str(cifar), augment=PLAIN)
    data.setup("test")
    image, label = data.splits["test"][5]
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in data.info[2:])
    raw = torch.from_numpy(data.sources[1].pixels[5]).permute(2, 0, 1)
    assert torch.equal((image * std + mean).mul(255).round().byte(), raw)
    assert label == data.sources[1].labels[5]
