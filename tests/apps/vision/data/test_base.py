"""The data of the vision app: what is read, what is refused, how it is split and delivered."""

import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from attention_vision import download
from attention_vision.data import CIFAR, Augment, Digits, ImageFolders, VisionData
from attention_vision.data.cifar import read_records
from experiment_kit.errors import UserError
from hypothesis import given
from hypothesis import strategies as st
from jsonargparse import ArgumentParser
from PIL import Image

OVERLAYS = sorted(Path("apps/vision/configs/data").glob("*.yaml"))
PLAIN = Augment(hflip=0.0, crop_padding=0, crop_pct=1.0)
STRONG = Augment(auto_augment="rand-m9-mstd0.5-inc1", re_prob=0.25, crop_padding=4, crop_pct=1.0)


def overlay(*paths: Path) -> VisionData:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("-c", action="config")
    parser.add_argument("--run", type=dict[str, str])
    parser.add_subclass_arguments(VisionData, "data")
    parsed = parser.parse_args([part for path in paths for part in ("-c", str(path))])
    return parser.instantiate_classes(parsed).data


# configs


@pytest.mark.parametrize("path", OVERLAYS, ids=lambda path: path.stem)
def test_every_overlay_makes_its_data_set_without_a_file(path: Path) -> None:
    text = yaml.safe_load(path.read_text())
    data = overlay(path)
    assert text["run"]["data"] == path.stem
    assert len(path.read_text().splitlines()) <= 25
    assert set(text["data"]["init_args"]["augment"]) == {field.name for field in fields(Augment)}
    assert (data.problem, data.protocol) == (text["data"]["init_args"]["name"], "validation")


def test_a_recipe_changes_what_it_names_and_no_more(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: {init_args: {augment: {re_prob: 0.25, repeats: 3}}}")
    named = {path.stem: path for path in OVERLAYS}
    augment = overlay(named["imagenet_1k"], named["cifar100"], recipe).augment
    assert (augment.re_prob, augment.repeats, augment.crop_padding) == (0.25, 3, 4)
    assert augment.auto_augment == "rand-m9-n2-mstd1.0"


def test_sizes_are_those_of_the_data_sets() -> None:
    sizes = {p.stem: (d.num_classes, d.image_size) for p in OVERLAYS if (d := overlay(p))}
    assert sizes == {
        "digits": (10, 64),
        "cifar10": (10, 32),
        "cifar100": (100, 32),
        "tiny_imagenet": (200, 64),
        "imagenet_100": (100, 224),
        "imagenet_1k": (1000, 224),
    }


def test_a_data_module_must_say_its_sizes() -> None:
    data = Digits("digits")
    del data.num_classes
    with pytest.raises(TypeError, match="Digits must define num_classes"):
        data.setup("fit")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"name": "mnist"}, "data.name must be one of digits, got 'mnist'"),
        ({"share": 1.0}, "data.share, held out of training, must be in"),
        ({"batch_size": 0}, "data.batch_size must be at least 1, got 0"),
        ({"image_size": -8}, "data.image_size must be at least 1, got -8"),
    ],
)
def test_a_wrong_argument_is_told(arguments, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        Digits(**{"name": "digits"} | arguments)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"re_prob": 1.5}, r"re_prob must be in \[0, 1\], got 1.5"),
        ({"repeats": 0}, "repeats must be at least 1, got 0"),
        ({"scale": (0.5, 0.1)}, "scale must be two shares"),
        ({"crop_pct": 0.0}, "crop_pct must be in"),
        ({"crop_padding": -1}, "crop_padding must be at least 0"),
    ],
)
def test_a_wrong_setting_of_augmentation_is_told(settings, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        Augment(**settings)


@pytest.mark.parametrize("policy", ["rend-m9", "rand-q9", "rand-zz9"])
def test_an_unknown_policy_is_told(policy) -> None:
    with pytest.raises(UserError, match=f"'{policy}' is not a policy of timm"):
        Digits("digits", augment=Augment(auto_augment=policy)).setup("fit")


@pytest.mark.parametrize("policy", ["rand-m10-inc1", "v0"])
def test_a_policy_may_keep_no_bit_of_a_colour(policy) -> None:
    """Pillow 13 refuses it; timm asks for it in one of 600 images of DeiT's recipe."""
    transform = Augment(auto_augment=policy).train_transform(8, (0.5,) * 3, (0.5,) * 3)
    image = Image.new("RGB", (8, 8), (200, 100, 50))
    for _ in range(150):
        assert transform(image).isfinite().all()


# splits and protocols


def digits(stage: str = "fit", **kwargs) -> Digits:
    data = Digits("digits", **{"image_size": 16, "augment": PLAIN} | kwargs)
    data.setup(stage)
    return data


def test_a_validation_part_is_held_out_by_class_and_by_seed() -> None:
    one, same, other = (digits(seed=seed, share=0.2) for seed in (0, 0, 1))
    train, val = one.parts["train"], one.parts["val"]
    assert not set(train.indices) & set(val.indices)
    assert len(train) + len(val) == len(one.sources[0].labels) == 1438
    shares = np.bincount(val.labels) / np.bincount(one.sources[0].labels)
    assert np.abs(shares - 0.2).max() < 0.01
    assert np.array_equal(val.indices, same.parts["val"].indices)
    assert not np.array_equal(val.indices, other.parts["val"].indices)
    one.setup("test")
    other.setup("test")
    assert len(one.parts["test"]) == 359
    assert np.array_equal(one.sources[1].pixels, other.sources[1].pixels)  # for every seed


def test_the_papers_protocol_trains_on_everything_and_selects_on_test() -> None:
    data = digits(protocol="test")
    assert len(data.parts["train"]) == 1438
    assert data.parts["val"] is data.parts["test"]


# transforms


def test_training_images_are_augmented_and_scored_ones_are_not() -> None:
    data = digits(augment=STRONG, image_size=24)
    train, val = data.parts["train"], data.parts["val"]
    assert train[0][0].shape == val[0][0].shape == (3, 24, 24)
    assert train[0][0].dtype == torch.float32
    assert not torch.equal(train[0][0], train[0][0])
    assert torch.equal(val[0][0], val[0][0])


def test_test_images_of_cifar_are_left_as_they_are_but_for_the_normalisation(cifar) -> None:
    data = CIFAR("CIFAR-100", data_dir=str(cifar), augment=PLAIN)
    data.setup("test")
    image, label = data.parts["test"][5]
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in data.info[2:])
    raw = torch.from_numpy(data.sources[1].pixels[5]).permute(2, 0, 1)
    assert torch.equal((image * std + mean).mul(255).round().byte(), raw)
    assert label == data.sources[1].labels[5]


@pytest.mark.parametrize(("crop_pct", "seen"), [(0.875, 224 / 256), (1.0, 1.0)])
def test_evaluation_resizes_and_crops_as_deit_and_cait_do(crop_pct, seen) -> None:
    ramp = np.tile(np.linspace(0, 255, 512).astype(np.uint8)[:, None], (512, 1, 3))
    transform = Augment(crop_pct=crop_pct).eval_transform(224, (0.0,) * 3, (1.0,) * 3)
    image = transform(Image.fromarray(ramp.reshape(512, 512, 3)))
    assert image.shape == (3, 224, 224)
    assert (image.max() - image.min()).item() == pytest.approx(seen, abs=0.01)


# loaders


def test_digits_come_as_batches_of_images_and_labels() -> None:
    data = digits(batch_size=100)
    images, labels = next(iter(data.train_dataloader()))
    assert (images.shape, images.dtype) == ((100, 3, 16, 16), torch.float32)
    assert (labels.shape, labels.dtype) == ((100,), torch.int64)
    data.setup("test")
    for loader in (data.test_dataloader(), data.predict_dataloader()):
        assert torch.cat([labels for _, labels in loader]).tolist() == [*data.sources[1].labels]


@pytest.mark.parametrize(("size", "count"), [(100, 12), (5000, 1)])
def test_training_drops_a_last_incomplete_batch_unless_it_is_the_only_one(size, count) -> None:
    assert len(digits(batch_size=size).train_dataloader()) == count


def test_augmentation_depends_on_the_seed_but_not_on_the_workers() -> None:
    def first(**kwargs) -> torch.Tensor:
        return next(iter(digits(augment=STRONG, batch_size=8, **kwargs).train_dataloader()))[0]

    torch.manual_seed(1)
    one = first()
    torch.manual_seed(2)
    assert torch.equal(first(num_workers=1), one)
    assert not torch.equal(first(seed=1), one)


def test_repeated_augmentation_draws_an_image_several_times() -> None:
    data = digits(augment=Augment(repeats=3, crop_padding=2, hflip=0.0), batch_size=6)
    loader = data.train_dataloader()
    assert len(loader) == 1280 // 6  # of 1294 images, cut to a multiple of 256
    images, labels = next(iter(loader))
    assert labels[0] == labels[1] == labels[2]
    assert labels[3] == labels[4] == labels[5]
    assert not torch.equal(images[0], images[1])


# CIFAR


def records(pixels: np.ndarray, labels: np.ndarray, coarse: bool) -> bytes:
    planes = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
    before = [np.zeros(len(labels))] * coarse + [labels]
    return np.column_stack([*before, planes]).astype(np.uint8).tobytes()


@given(st.integers(1, 5), st.booleans(), st.integers(0, 2**32 - 1))
def test_records_are_read_back_as_they_were_written(tmp_path_factory, count, coarse, seed) -> None:
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (count, 32, 32, 3), np.uint8)
    labels = generator.integers(0, 100, count)
    path = tmp_path_factory.mktemp("cifar") / "x.bin"
    path.write_bytes(records(pixels, labels, coarse))
    found, found_labels = read_records(path, 1 + coarse, 100)
    assert np.array_equal(found, pixels)
    assert np.array_equal(found_labels, labels)


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    versions = {"cifar-100-binary": ("train.bin", "test.bin", True)}
    versions["vision/cifar-10-batches-bin"] = ("data_batch_1.bin", "test_batch.bin", False)
    for folder, (*files, coarse) in versions.items():
        (tmp_path / folder).mkdir(parents=True)
        for file in files:
            pixels = generator.integers(0, 256, (20, 32, 32, 3), np.uint8)
            labels = np.arange(20) % 10
            (tmp_path / folder / file).write_bytes(records(pixels, labels, coarse))
    return tmp_path


@pytest.mark.parametrize("name", ["CIFAR-10", "CIFAR-100"])
def test_a_subset_is_found_in_several_layouts_and_told(name, cifar, monkeypatch, capsys) -> None:
    monkeypatch.setenv("DATA_DIR", str(cifar))
    data = CIFAR(name, batch_size=4, share=0.5)
    data.setup("fit")
    assert len(data.parts["train"]) == len(data.parts["val"]) == 10
    assert CIFAR.whereabouts(name).is_dir()
    assert "has 20 of 50,000 training and 20 of 10,000 test images" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda data: data[:-7], r"train.bin has 61473 bytes, not one or more records of 3074"),
        (lambda data: b"", r"train.bin has 0 bytes"),
        (lambda data: b"\0" + bytes([100]) + data[2:], "record 0 has label 100, not 0 to 99"),
    ],
)
def test_a_bad_file_is_told(damage, sentence, cifar) -> None:
    path = cifar / "cifar-100-binary/train.bin"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=sentence):
        CIFAR("CIFAR-100", data_dir=str(cifar)).setup("fit")


def test_what_is_absent_is_told(cifar, monkeypatch) -> None:
    (cifar / "cifar-100-binary/test.bin").unlink()
    with pytest.raises(UserError, match=r"test.bin does not exist"):
        CIFAR("CIFAR-100", data_dir=str(cifar)).setup("fit")
    with pytest.raises(UserError, match="DATA_DIR /nowhere is not a folder"):
        CIFAR("CIFAR-100", data_dir="/nowhere").setup("fit")
    with pytest.raises(UserError, match=r"no imagenet in DATA_DIR .*download imagenet"):
        ImageFolders("ImageNet-1k", data_dir=str(cifar)).setup("fit")
    monkeypatch.delenv("DATA_DIR", raising=False)
    with pytest.raises(UserError, match="no cifar-10-batches-bin: set DATA_DIR"):
        CIFAR.whereabouts("CIFAR-10")


# download


@pytest.mark.parametrize("names", [[], ["mnist"], ["cifar10", "imagenet"]])
def test_download_names_what_there_is(names, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["download", *names])
    with pytest.raises(SystemExit):
        download.main()
    assert (
        "name some of cifar10, cifar100, tiny_imagenet, or imagenet alone"
        in capsys.readouterr().err
    )


def test_the_makefiles_data_sets_are_downloaded_one_after_the_other(monkeypatch, tmp_path) -> None:
    (line,) = re.findall(r"attention_vision\.download (cifar.*)", Path("Makefile").read_text())
    urls: list[str] = []
    monkeypatch.setattr(download, "fetch", lambda url, path: urls.append(url))
    monkeypatch.setattr(download, "extract", lambda path, folder: folder)
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["download", *line.split()])
    download.main()
    assert [url.rpartition("/")[2] for url in urls] == [
        "cifar-10-binary.tar.gz",
        "cifar-100-binary.tar.gz",
    ]


def test_download_says_how_to_obtain_imagenet(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["download", "imagenet"])
    download.main()
    assert "https://image-net.org/download" in capsys.readouterr().out


def test_what_was_downloaded_is_found(cifar, monkeypatch, capsys) -> None:
    unpacked = cifar / "cifar-100-binary/cifar-100-binary"
    unpacked.mkdir()
    for file in ("train.bin", "test.bin"):
        (cifar / "cifar-100-binary" / file).rename(unpacked / file)
    (cifar / "cifar-100-binary.tar.gz").write_bytes(b"fetched before")
    monkeypatch.setenv("DATA_DIR", str(cifar))
    monkeypatch.setattr("sys.argv", ["download", "cifar100"])
    download.main()
    assert CIFAR.whereabouts("CIFAR-100") == unpacked
    assert Digits.whereabouts("digits").is_file()
