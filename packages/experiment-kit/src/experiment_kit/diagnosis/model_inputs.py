"""Inputs of a model that is diagnosed: images, texts or recordings, in files or made here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image

from experiment_kit.data.folders import list_visible_files
from experiment_kit.data.image_files import IMAGE_SUFFIXES, load_image, note_frames
from experiment_kit.errors import UserError
from experiment_kit.launch.plan import load_app

Kind = Literal["image", "text", "recording"]
_SUFFIXES = {
    "image": IMAGE_SUFFIXES,
    "text": (".txt",),
    "recording": (".aif", ".aiff", ".au", ".caf", ".flac", ".mp3", ".oga", ".ogg", ".opus", ".sph",
                  ".w64", ".wav"),
}  # fmt: skip
_APPS = {"text": "nlp", "recording": "speech"}  # that make samples of a kind
_MADE: dict[str, str] = {
    "image": "The images are drawn noise with the 1/f spectrum of natural images.",
    "text": "The texts are sentences of the documentation that ships with Python.",
    "recording": "The recordings are digits spoken by a synthesizer.",
}


def find_samples(paths: Sequence[str], kind: Kind, count: int) -> tuple[list[Any], str]:
    """Return at most `count` samples of a kind, and a sentence on their origin."""
    app: Any = load_app(_APPS[kind]) if kind in _APPS else None
    if not paths:
        made = app.make_inputs(count) if app else [*map(make_image, range(count))]
        return made, _MADE[kind]
    samples: list[Any] = []
    files = find_input_files(paths, kind, count)  # some may be empty
    files += [file for file in find_input_files(paths, kind, 0) if file not in files]
    for file in files:
        found: Any = app.read_input(file) if app else load_image(file)
        samples += [line for line in found if line.strip()] if kind == "text" else [found]
        if len(samples) >= count:
            break
    if kind == "image":
        note_frames(files[: len(samples)])
    if not samples:
        raise UserError(f"--input={paths[0]} holds no {kind}s")
    return samples[:count], f"The {kind}s are up to {count} of those of {', '.join(paths)}."


def find_input_files(paths: Sequence[str], kind: str, count: int) -> list[Path]:
    """List the named files and those of a kind in folders, or `count` of them evenly apart."""
    files: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise UserError(f"--input={path} does not exist")
        found = list_visible_files(path, *_SUFFIXES.get(kind, ("",)))
        if path.is_dir() and not found:
            raise UserError(f"--input={path} is a folder without {kind or 'file'}s")
        files += found if path.is_dir() else [path]
    size = min(count or len(files), len(files))
    return [files[number * len(files) // size] for number in range(size)]


def make_image(seed: int, size: int = 256) -> Image.Image:
    r"""Draw Gaussian noise whose amplitude falls as that of natural images does, in gray and color.

    .. math:: |\hat x(f)| \propto 1 / |f|

    Source: https://doi.org/10.1364/JOSAA.4.002379

    >>> make_image(0).size, make_image(0) == make_image(0), make_image(0) == make_image(1)
    ((256, 256), True, False)
    """
    rng = np.random.default_rng(seed)
    frequencies = np.hypot(*np.meshgrid(*[np.fft.fftfreq(size)] * 2, indexing="ij"))
    frequencies[0, 0] = np.inf  # the mean is set below
    channels = np.fft.ifft2(np.fft.fft2(rng.standard_normal((3, size, size))) / frequencies).real
    channels = channels[:1] + 0.3 * channels[1:].mean(0) + 0.3 * channels  # mostly gray
    channels *= 50 / channels.std()
    pixels = np.clip(118 + channels, 0, 255).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def draw_token_ids(vocab_size: int, count: int, length: int) -> torch.Tensor:
    """Draw token ids (B, N), the same ones at each call."""
    return torch.randint(vocab_size, (count, length), generator=torch.Generator().manual_seed(0))
