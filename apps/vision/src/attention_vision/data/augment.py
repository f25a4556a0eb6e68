"""Image transforms of training and evaluation: those of timm, and their settings."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from attention_core.checks import check_nonnegative, check_numbers, check_positive, check_sizes
from experiment_kit.errors import convert_user_errors
from PIL import Image
from timm.data import create_transform
from timm.data.auto_augment import posterize
from timm.data.transforms import str_to_interp_mode
from torch import Tensor
from torchvision.transforms import Compose, RandomCrop, Resize

Transform = Callable[[Image.Image], Tensor]  # an image of any size -> (3, size, size)
_OWNER = "data.augment"
Color = tuple[float, float, float]  # red, green and blue, in [0, 1]


@dataclass(frozen=True)
class Augment:
    """Settings of timm's `create_transform` by its names, with `crop_padding` and `repeats` added.

    Args:
        auto_augment: Policy of timm, such as rand-m9-mstd0.5-inc1; it replaces color_jitter.
        color_jitter: Strength of random colors.
        hflip: Probability of a horizontal flip.
        scale: Least and greatest share of the area that a random crop takes.
        crop_padding: Pixels of padding before a random crop, as is usual for CIFAR; null takes
            crops of a random area.
        interpolation: Interpolation of training.
        re_prob: Probability that a rectangle is erased.
        re_mode: Content of an erased rectangle.
        re_count: Number of erased rectangles.
        repeats: Times that an epoch draws each image (repeated augmentation; DeiT's is 3).
        crop_pct: Share of the shorter side that evaluation keeps: 0.875 is DeiT's, 1.0 CaiT's.
        eval_interpolation: Interpolation of evaluation; null is that of training.
    """

    auto_augment: str | None = None
    color_jitter: float = 0.0
    hflip: float = 0.5
    scale: tuple[float, float] = (0.08, 1.0)
    crop_padding: int | None = None
    interpolation: Literal["bilinear", "bicubic", "random"] = "bicubic"
    re_prob: float = 0.0
    re_mode: Literal["const", "rand", "pixel"] = "pixel"
    re_count: int = 1
    repeats: int = 1
    crop_pct: float = 0.875
    eval_interpolation: Literal["bilinear", "bicubic"] | None = None

    def __post_init__(self) -> None:
        shares = {"hflip": self.hflip, "re_prob": self.re_prob, "crop_pct": self.crop_pct}
        check_numbers(_OWNER, 0, 1, **shares)
        check_sizes(_OWNER, re_count=self.re_count, repeats=self.repeats)
        check_positive(_OWNER, crop_pct=self.crop_pct)
        padding = self.crop_padding or 0
        check_nonnegative(_OWNER, color_jitter=self.color_jitter, crop_padding=padding)
        low, high = self.scale
        if not 0 < low <= high <= 1:
            raise ValueError(f"{_OWNER}.scale must be two shares of the area, got {self.scale}")
        self.train_transform(32, (0.5,) * 3, (0.5,) * 3)  # refuses what timm has no policy of

    def train_transform(self, size: int, mean: Color, std: Color) -> Transform:
        """Make the random transform of training; raises UserError for an unknown policy."""
        policy = f"data.augment.auto_augment: {self.auto_augment!r} is not a policy of timm,"
        kinds = AssertionError, KeyError, ValueError
        with convert_user_errors(*kinds, prefix=f"{policy} such as rand-m9-mstd0.5-inc1: "):
            transform = create_transform(
                size,
                is_training=True,
                scale=self.scale,
                hflip=self.hflip,
                color_jitter=self.color_jitter or None,  # type: ignore[arg-type]
                auto_augment=self.auto_augment,
                interpolation=self.interpolation,
                mean=mean,
                std=std,
                re_prob=self.re_prob,
                re_mode=self.re_mode,
                re_count=self.re_count,
            )
        if self.crop_padding is not None:
            resize = Resize(size, str_to_interp_mode(self._fixed_interpolation))
            transform.transforms[:1] = [resize, RandomCrop(size, self.crop_padding)]
        _allow_zero_bits(transform)
        return transform

    def eval_transform(self, size: int, mean: Color, std: Color) -> Transform:
        """Make the fixed transform of evaluation."""
        interpolation = self.eval_interpolation or self._fixed_interpolation
        crop_pct = self.crop_pct
        return create_transform(
            size, interpolation=interpolation, crop_pct=crop_pct, mean=mean, std=std
        )

    @property
    def _fixed_interpolation(self) -> str:
        return "bilinear" if self.interpolation == "random" else self.interpolation


def _allow_zero_bits(transform: Compose) -> None:
    """Let the policies keep 0 bits of a color: Pillow 13 raises, earlier ones made it black.

    timm 1.0.31 asks for 0 bits if PosterizeIncreasing draws a magnitude of 10 or more.
    """
    for step in transform.transforms:
        policies = [getattr(step, "ops", []), *getattr(step, "policy", [])]
        for operation in chain.from_iterable(policies):
            if operation.aug_fn is posterize:
                operation.aug_fn = _posterize


def _posterize(image: Image.Image, bits_to_keep: int, **kwargs: object) -> Image.Image:
    if bits_to_keep == 0:
        return Image.new(image.mode, image.size)
    return posterize(image, bits_to_keep, **kwargs)
