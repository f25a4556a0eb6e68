"""What an image goes through on its way to the model: timm's transforms, and their settings."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from experiment_kit.errors import UserError
from PIL import Image
from timm.data import create_transform
from timm.data.auto_augment import posterize
from timm.data.transforms import str_to_interp_mode
from torch import Tensor
from torchvision.transforms import Compose, RandomCrop, Resize

Transform = Callable[[Image.Image], Tensor]
Colour = tuple[float, float, float]  # red, green and blue, in [0, 1]


@dataclass(frozen=True)
class Augment:
    """Settings of timm's `create_transform`, under its names, and two of our own.

    Training images are cropped and resized at random by area (`scale`); with `crop_padding`
    instead resized, padded by as many pixels and cropped, as is usual for CIFAR. timm ignores
    `color_jitter` where `auto_augment` names a policy. `repeats` is the number of times that an
    image of an epoch is drawn (repeated augmentation; DeiT's is 3). Evaluation resizes the shorter
    side to size / `crop_pct` and crops the centre: 0.875 is DeiT's 256 to 224, 1.0 is CaiT's.

    Raises ValueError for a number out of its range.
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

    def __post_init__(self) -> None:
        for name in ("hflip", "re_prob"):
            _check(0 <= getattr(self, name) <= 1, name, "in [0, 1]", getattr(self, name))
        for name in ("re_count", "repeats"):
            _check(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        low, high = self.scale
        _check(0 < low <= high <= 1, "scale", "two shares of the area in (0, 1]", self.scale)
        _check((self.crop_padding or 0) >= 0, "crop_padding", "at least 0", self.crop_padding)
        _check(self.color_jitter >= 0, "color_jitter", "at least 0", self.color_jitter)
        _check(0 < self.crop_pct <= 1, "crop_pct", "in (0, 1]", self.crop_pct)

    def training(self, size: int, mean: Colour, std: Colour) -> Transform:
        """The random transform of a training image; raises UserError for an unknown policy.

        Shapes: an image of any size -> (3, size, size).
        """
        try:
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
        except (AssertionError, KeyError, ValueError) as error:
            raise UserError(
                f"data.augment.auto_augment: {self.auto_augment!r} is not a policy of timm,"
                " such as rand-m9-mstd0.5-inc1"
            ) from error
        if self.crop_padding is not None:
            fit = Resize(size, str_to_interp_mode(self._definite()))
            transform.transforms[:1] = [fit, RandomCrop(size, self.crop_padding)]
        _spare_pillow(transform)
        return transform

    def evaluation(self, size: int, mean: Colour, std: Colour) -> Transform:
        """The fixed transform of an image that is scored.

        Shapes: an image of any size -> (3, size, size).
        """
        return create_transform(
            size,
            interpolation=self._definite(),
            crop_pct=self.crop_pct,
            mean=mean,
            std=std,
        )

    def _definite(self) -> str:
        return "bilinear" if self.interpolation == "random" else self.interpolation


def _spare_pillow(transform: Compose) -> None:
    """Let the policies keep 0 bits of a colour: Pillow 13 raises, earlier ones made it black.

    timm 1.0.31 asks for that where the magnitude of PosterizeIncreasing is drawn as 10 or more.
    """
    for step in transform.transforms:
        policies = [getattr(step, "ops", []), *getattr(step, "policy", [])]
        for operation in chain.from_iterable(policies):
            if operation.aug_fn is posterize:
                operation.aug_fn = _posterize


def _posterize(image: Image.Image, bits_to_keep: int, **rest: object) -> Image.Image:
    if bits_to_keep == 0:
        return Image.new(image.mode, image.size)
    return posterize(image, bits_to_keep, **rest)


def _check(holds: bool, name: str, allowed: str, value: object) -> None:
    if not holds:
        raise ValueError(f"data.augment.{name} must be {allowed}, got {value}")
