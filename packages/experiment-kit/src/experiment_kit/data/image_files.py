"""Image files of any depth, read by one rule, and CIFAR's binary files."""

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from experiment_kit.errors import UserError
from experiment_kit.run_files import warn_once

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".bmp", ".gif", ".webp", ".avif"),
    *(".tif", ".tiff", ".jp2", ".ppm", ".pgm", ".pbm", ".pnm"),
)
_ONE_FRAME = (".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".jp2")
_BITS_PER_SAMPLE, _PHOTOMETRIC, _PLANES, _COLORS, _SAMPLE_FORMAT = 258, 262, 284, 320, 339  # TIFF
_APART = _SIGNED = 2  # values of the last two
_DARK = "{} has dark images, below 4096 of 16 bits: the upper 8 are read"
_MAX_PIXELS = 2**31  # scans are larger than Pillow's bound; these take 6 GB


class UnreadableImageError(UserError):
    """An image file that cannot be decoded."""


def load_image(path: Path, thumbnail: bool = False) -> Image.Image:
    """Load an image as RGB of 8 bits, in the smallest size of its decoder if `thumbnail`.

    It is turned as its EXIF data say, and laid on white where it is transparent, but not all over:
    then its writer left alpha unset. Of 12 and 16 bits the upper 8 are kept. Whole numbers of 32
    bits count as 8 bits up to 255 and as 16 bits up to 65,535. Of several frames the first is read.
    Raises UnreadableImageError for other pixels, and for a file that is no whole image.
    """
    Image.MAX_IMAGE_PIXELS = _MAX_PIXELS
    try:
        with path.open("rb") as file, Image.open(file) as image:  # a mapped TIFF is turned wrong
            if thumbnail:
                image.draft("RGB", (1, 1))
            is_deep = ";16" in str(image.tile[:1])
            image.load()
            if is_deep and image.mode == "RGB" and np.asarray(image).max() < 16:
                warn_once(_DARK.format(path.parent))
            with suppress(Exception):  # it turns the image before it fails at damaged EXIF data
                ImageOps.exif_transpose(image, in_place=True)
            return _convert_to_rgb(image, path)
    except Exception as error:  # whatever a damaged file makes a decoder raise
        hint = "Pillow knows no such image: save it as PNG of 8 or 16 bits"
        reason = hint if isinstance(error, UnidentifiedImageError) else error
        raise UnreadableImageError(f"{path} cannot be read: {reason}") from error


def _convert_to_rgb(image: Image.Image, path: Path) -> Image.Image:
    if image.mode == "F":
        raise ValueError("its pixels are of floating point: save them as whole numbers")
    tags = getattr(image, "tag_v2", {})
    if image.mode == "L" and tags.get(_SAMPLE_FORMAT) == (_SIGNED,):
        raise ValueError("its pixels are signed: save them as 0 to 255")
    if tags.get(_PLANES) == _APART and max(tags.get(_BITS_PER_SAMPLE, (0,))) > 8:
        raise ValueError("its planes of 16 bits are apart, which Pillow misreads: save 8 bits")
    if image.mode == "P" and max(tags.get(_COLORS, (256,))) < 256:  # 8 bits, not 16
        image.putpalette(bytes(tags[_COLORS]), "RGB;L")
    image = image.convert("LA") if image.mode == "La" else image  # multiplied by their alpha
    if image.mode.startswith("I"):
        image = _reduce_depth(image, path)
    elif image.has_transparency_data:
        white, has_alpha = Image.new("RGBA", image.size, "white"), "A" in image.mode
        image = image.convert("RGBA")
        is_clear = has_alpha and not image.getchannel("A").getbbox()
        is_unset = is_clear and image.convert("RGB").getbbox()
        image = image if is_unset else Image.alpha_composite(white, image)
    return image.convert("RGB")


def _reduce_depth(image: Image.Image, path: Path) -> Image.Image:
    values, shift, tags = np.asarray(image), 8, getattr(image, "tag_v2", {})
    low, high = values.min(), values.max()
    if low < 0 or high > 65535:
        raise ValueError(f"its pixels are {low} to {high}: save them as 0 to 65535")
    if image.mode == "I":
        shift = 8 * (high > 255 or image.format == "PPM" or tags.get(_BITS_PER_SAMPLE) == (16,))
    elif tags.get(_BITS_PER_SAMPLE) == (12,):
        shift = 4
    if shift == 8 and high < 4096:
        warn_once(_DARK.format(path.parent))
    values = np.where(values == image.info.get("transparency"), 65535, values)
    pixels = (values >> shift).astype(np.uint8)
    return Image.fromarray(pixels if tags.get(_PHOTOMETRIC, 1) else 255 - pixels)  # 0 is white


def note_frames(paths: Iterable[Path | str]) -> None:
    """Print how many images have several frames or pages; the first one is read."""
    if several := [Path(path).name for path in paths if _count_frames(path) > 1]:
        text = f"{len(several)} images have several frames or pages, of which the first is read"
        print(f"note: {text}: {format_names(several)}", file=sys.stderr)


def _count_frames(path: Path | str) -> int:
    if not str(path).lower().endswith(_ONE_FRAME):
        with suppress(Exception), Image.open(path) as image:  # its reader reports a damaged file
            return getattr(image, "n_frames", 1)
    return 1


def format_names(names: Sequence[str]) -> str:
    """Join the first three names."""
    return ", ".join([*names[:3], *["..."] * (len(names) > 3)])


def read_cifar_file(path: Path, labels: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Read color planes (N, 3, 1024) and classes (N,), the last of the labels of a record.

    A record is one or two labels and 3 x 32 x 32 bytes. Raises UserError for a file that is absent,
    empty or truncated, and for a label out of range. https://www.cs.toronto.edu/~kriz/cifar.html
    """
    if not path.is_file():
        raise UserError(f"{path} does not exist")
    data, record = np.fromfile(path, np.uint8), labels + 3 * 1024
    if not len(data) or len(data) % record:
        raise UserError(f"{path} has {len(data)} bytes, not one or more records of {record} bytes")
    rows = data.reshape(-1, record)
    classes = rows[:, labels - 1].astype(np.int64)
    if classes.max() >= num_classes:
        text = f"{path}: record {classes.argmax()} has label {classes.max()}"
        raise UserError(f"{text}, not 0 to {num_classes - 1}")
    return rows[:, labels:].reshape(-1, 3, 1024), classes
