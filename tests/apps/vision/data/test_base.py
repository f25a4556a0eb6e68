"""The data of the vision app: overlays, splits, loaders and augmentation."""

import numpy as np
import pytest
import torch
from attention_vision.data import Augment, Digits, VisionData
from experiment_kit.errors import UserError
from PIL import Image
from torch.utils.data import DataLoader

from tests.apps.cases import VISION

PLAIN = Augment(hflip=0.0, crop_padding=0, crop_pct=1.0)
STRONG = Augment(auto_augment="rand-m9-mstd0.5-inc1", re_prob=0.25, crop_padding=4, crop_pct=1.0)
# classes and pixels
SIZES = {"digits": (10, 64), "cifar10": (10, 32), "cifar100": (100, 32)}
SIZES |= {"tiny_imagenet": (200, 64), "imagenet_100": (100, 224), "imagenet_1k": (1000, 224)}


def build_data(*extra: str, **chosen: str) -> VisionData:
    with torch.device("meta"):
        return VISION.build(VISION.arguments(*extra, **chosen)).data


@pytest.mark.parametrize(("settings", "sentence"), [
    ({"re_prob": 1.5}, r"re_prob must be a number from 0 to 1, got 1.5"),
    ({"scale": (0.5, 0.1)}, "scale must be two shares"),
    ({"auto_augment": "rend-m9"}, "'rend-m9' is not a policy of timm"),
])  # fmt: skip
def test_errors_of_augmentation(settings, sentence) -> None:
    with pytest.raises((ValueError, UserError), match=sentence):
        Augment(**settings)


@pytest.mark.parametrize("policy", ["rand-m10-inc1", "v0"])
def test_a_policy_may_keep_no_bit_of_a_color(policy) -> None:
    """Pillow 13 refuses it; timm asks for it in one of 600 images of DeiT's recipe."""
    transform = Augment(auto_augment=policy).train_transform(8, (0.5,) * 3, (0.5,) * 3)
    for _ in range(150):
        assert transform(Image.new("RGB", (8, 8), (200, 100, 50))).isfinite().all()


@pytest.mark.parametrize(("crop_pct", "share"), [(0.875, 224 / 256), (1.0, 1.0)])
def test_evaluation_resizes_and_crops_as_deit_and_cait_do(crop_pct, share) -> None:
    ramp = np.tile(np.linspace(0, 255, 512).astype(np.uint8)[:, None, None], (1, 512, 3))
    transform = Augment(crop_pct=crop_pct).eval_transform(224, (0.0,) * 3, (1.0,) * 3)
    image = transform(Image.fromarray(ramp))
    assert image.shape == (3, 224, 224)
    assert (image.max() - image.min()).item() == pytest.approx(share, abs=0.01)


def test_the_recipe_of_cifar_keeps_the_last_batch_and_scores_the_training_images() -> None:
    settings = VISION.parse(data="cifar100", recipe="cifar").data.init_args
    kept, scored = settings["drop_last"], settings["score_train"]
    data = load_digits(batch_size=96, drop_last=kept, score_train=scored, val_fraction=0.2)
    count = len(data.splits["train"])
    assert count % 96
    assert len(data.train_dataloader()) == -(-count // 96)
    assert len(load_digits(batch_size=96, val_fraction=0.2).train_dataloader()) == count // 96
    assert len(load_digits(batch_size=5000).train_dataloader()) == 1  # the only one is kept
    data.setup("test")
    test, train = data.test_dataloader()
    assert [len(loader.dataset) for loader in (test, train)] == [len(data.splits["test"]), count]
    assert isinstance(load_digits("test").test_dataloader(), DataLoader)


def load_digits(stage: str = "fit", **options) -> Digits:
    data = Digits("digits", **{"image_size": 16, "augment": PLAIN} | options)
    data.setup(stage)
    return data


def test_a_validation_split_is_held_out_by_class_and_by_seed_unless_papers_have_none() -> None:
    one, same, other = (load_digits(seed=seed, val_fraction=0.2) for seed in (0, 0, 1))
    train, val = one.splits["train"], one.splits["val"]
    assert not set(train.indices) & set(val.indices)
    assert len(train) + len(val) == len(one.sources[0].labels) == 1438
    assert np.abs(np.bincount(val.labels) / np.bincount(one.sources[0].labels) - 0.2).max() < 0.01
    assert np.array_equal(val.indices, same.splits["val"].indices)
    assert not np.array_equal(val.indices, other.splits["val"].indices)
    one.setup("test")
    other.setup("test")
    assert len(one.splits["test"]) == 359
    assert np.array_equal(one.sources[1].pixels, other.sources[1].pixels)  # for every seed
    papers = load_digits(protocol="test").splits
    assert len(papers["train"]) == 1438
    assert papers["val"] is papers["test"]


def test_augmentation_depends_on_the_seed_but_not_on_the_workers() -> None:
    def load_images(**options) -> torch.Tensor:
        data = load_digits(augment=STRONG, batch_size=8, **options)
        return next(iter(data.train_dataloader()))[0]

    torch.manual_seed(1)
    images = load_images()
    torch.manual_seed(2)
    assert torch.equal(load_images(num_workers=1), images)
    assert not torch.equal(load_images(seed=1), images)
    val = load_digits(augment=STRONG).splits["val"]
    assert torch.equal(val[0][0], val[0][0])


def test_repeated_augmentation_draws_an_image_several_times() -> None:
    data = load_digits(augment=Augment(repeats=3, crop_padding=2, hflip=0.0), batch_size=6)
    loader = data.train_dataloader()
    assert len(loader) == 1280 // 6  # 1294 images, cut to a multiple of 256
    images, labels = next(iter(loader))
    assert labels.tolist() == labels[[0, 0, 0, 3, 3, 3]].tolist()
    assert not torch.equal(images[0], images[1])
