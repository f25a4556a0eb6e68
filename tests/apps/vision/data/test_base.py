"""The data of the vision app: splits, protocols, loaders, and the overlays that choose them."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from attention_vision.data import Augment, Digits, VisionData
from jsonargparse import ArgumentParser

OVERLAYS = sorted(Path("apps/vision/configs/data").glob("*.yaml"))
PLAIN = Augment(hflip=0.0, crop_padding=0, crop_pct=1.0)
STRONG = Augment(auto_augment="rand-m9-mstd0.5-inc1", re_prob=0.25, crop_padding=4, crop_pct=1.0)


def read_overlays(*paths: Path) -> VisionData:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("-c", action="config")
    parser.add_argument("--run", type=dict[str, str])
    parser.add_argument("--defaults", type=dict)
    parser.add_subclass_arguments(VisionData, "data")
    parsed = parser.parse_args([part for path in paths for part in ("-c", str(path))])
    return parser.instantiate_classes(parsed).data


@pytest.mark.parametrize("path", OVERLAYS, ids=lambda path: path.stem)
def test_every_overlay_makes_its_data_set_without_a_file(path: Path) -> None:
    text = yaml.safe_load(path.read_text())
    data = read_overlays(path)
    assert text["run"]["data"] == path.stem
    assert set(text["data"]["init_args"]["augment"]) == {field.name for field in fields(Augment)}
    assert (data.dataset_name, data.protocol) == (
        text["data"]["init_args"]["dataset_name"],
        "validation",
    )


def test_a_recipe_changes_what_it_names_and_no_more(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: {init_args: {augment: {re_prob: 0.25, repeats: 3}}}")
    named = {path.stem: path for path in OVERLAYS}
    augment = read_overlays(named["imagenet_1k"], named["cifar100"], recipe).augment
    assert (augment.re_prob, augment.repeats, augment.crop_padding) == (0.25, 3, 4)
    assert augment.auto_augment == "rand-m9-n2-mstd1.0"


def test_sizes_are_those_of_the_data_sets() -> None:
    sizes = {p.stem: (d.num_classes, d.image_size) for p in OVERLAYS if (d := read_overlays(p))}
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
        ({"dataset_name": "mnist"}, "data.dataset_name must be one of digits, got 'mnist'"),
        ({"val_fraction": 1.0}, "data.val_fraction must be in"),
        ({"batch_size": 0}, "data.batch_size must be at least 1, got 0"),
        ({"image_size": -8}, "data.image_size must be at least 1, got -8"),
    ],
)
def test_errors_of_arguments(arguments, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        Digits(**{"dataset_name": "digits"} | arguments)


def digits(stage: str = "fit", **kwargs) -> Digits:
    data = Digits("digits", **{"image_size": 16, "augment": PLAIN} | kwargs)
    data.setup(stage)
    return data


def test_a_validation_split_is_held_out_by_class_and_by_seed() -> None:
    one, same, other = (digits(seed=seed, val_fraction=0.2) for seed in (0, 0, 1))
    train, val = one.splits["train"], one.splits["val"]
    assert not set(train.indices) & set(val.indices)
    assert len(train) + len(val) == len(one.sources[0].labels) == 1438
    fractions = np.bincount(val.labels) / np.bincount(one.sources[0].labels)
    assert np.abs(fractions - 0.2).max() < 0.01
    assert np.array_equal(val.indices, same.splits["val"].indices)
    assert not np.array_equal(val.indices, other.splits["val"].indices)
    one.setup("test")
    other.setup("test")
    assert len(one.splits["test"]) == 359
    assert np.array_equal(one.sources[1].pixels, other.sources[1].pixels)  # for every seed


def test_the_papers_protocol_trains_on_everything_and_selects_on_test() -> None:
    data = digits(protocol="test")
    assert len(data.splits["train"]) == 1438
    assert data.splits["val"] is data.splits["test"]


def test_training_images_are_augmented_and_scored_ones_are_not() -> None:
    data = digits(augment=STRONG, image_size=24)
    train, val = data.splits["train"], data.splits["val"]
    assert train[0][0].shape == val[0][0].shape == (3, 24, 24)
    assert train[0][0].dtype == torch.float32
    assert not torch.equal(train[0][0], train[0][0])
    assert torch.equal(val[0][0], val[0][0])


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
