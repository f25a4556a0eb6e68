"""Augmentation: timm's transforms with our settings."""

import numpy as np
import pytest
from attention_vision.data import Augment, Digits
from experiment_kit.errors import UserError
from PIL import Image


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
def test_errors_of_settings(settings, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        Augment(**settings)


@pytest.mark.parametrize("policy", ["rend-m9", "rand-q9", "rand-zz9"])
def test_an_unknown_policy_is_refused(policy) -> None:
    with pytest.raises(UserError, match=f"'{policy}' is not a policy of timm"):
        Digits("digits", augment=Augment(auto_augment=policy)).setup("fit")


@pytest.mark.parametrize("policy", ["rand-m10-inc1", "v0"])
def test_a_policy_may_keep_no_bit_of_a_color(policy) -> None:
    """Pillow 13 refuses it; timm asks for it in one of 600 images of DeiT's recipe."""
    transform = Augment(auto_augment=policy).train_transform(8, (0.5,) * 3, (0.5,) * 3)
    image = Image.new("RGB", (8, 8), (200, 100, 50))
    for _ in range(150):
        assert transform(image).isfinite().all()


@pytest.mark.parametrize(("crop_pct", "seen"), [(0.875, 224 / 256), (1.0, 1.0)])
def test_evaluation_resizes_and_crops_as_deit_and_cait_do(crop_pct, seen) -> None:
    ramp = np.tile(np.linspace(0, 255, 512).astype(np.uint8)[:, None], (512, 1, 3))
    transform = Augment(crop_pct=crop_pct).eval_transform(224, (0.0,) * 3, (1.0,) * 3)
    image = transform(Image.fromarray(ramp.reshape(512, 512, 3)))
    assert image.shape == (3, 224, 224)
    assert (image.max() - image.min()).item() == pytest.approx(seen, abs=0.01)
