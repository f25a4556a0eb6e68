"""SpecAugment: features that are warped in time, and masked in time and in bands."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Masks:
    """SpecAugment: the reach of its warp, and number and width of its masks; 0 leaves one out.

    >>> Masks(warp=-1)
    Traceback (most recent call last):
    ValueError: model.masks: warp must not be negative, got -1
    """

    warp: int = 5
    bands: int = 2
    band_width: int = 30
    times: int = 2
    time_width: int = 40

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0:
                raise ValueError(f"model.masks: {name} must not be negative, got {value}")


def augment(x: Tensor, number: Tensor, masks: Masks) -> Tensor:
    """SpecAugment of normalised features (B, T, bands): a warp of time, then masks of the mean, 0.

    Each utterance has its own, within its real frames; a mask's width is drawn below the given
    one. Between frames the warp is linear, where speechbrain's is cubic.

    Source: https://arxiv.org/abs/1904.08779

    >>> x = torch.ones(1, 50, 8)
    >>> bool((augment(x, torch.tensor([50]), Masks(0, 1, 5, 0, 0)).sum() <= x.sum()))
    True
    """
    if masks.warp:
        x = _warped(x, number, masks.warp)
    bands = torch.full_like(number, x.shape[2])
    in_time = _masked(number, x.shape[1], masks.times, masks.time_width)[:, :, None]
    in_band = _masked(bands, x.shape[2], masks.bands, masks.band_width)[:, None, :]
    return x.masked_fill(in_time | in_band, 0.0)


def _masked(within: Tensor, size: int, count: int, width: int) -> Tensor:
    shape = (len(within), count, 1)
    widths = (torch.rand(shape, device=within.device) * width).long()
    room = (within[:, None, None] - widths + 1).clamp(min=1)
    start = (torch.rand(shape, device=within.device) * room).long()
    places = torch.arange(size, device=within.device)
    return ((start <= places) & (places < start + widths)).any(1)


def _warped(x: Tensor, number: Tensor, reach: int) -> Tensor:
    n = number[:, None]
    draws = torch.rand(2, len(x), 1, device=x.device)
    centre = reach + (draws[0] * (n - 2 * reach)).long()
    moved = centre + 1 - reach + (draws[1] * 2 * reach).long()
    t = torch.arange(x.shape[1], device=x.device)
    before = t * centre / moved
    after = centre + (t - moved) * (n - 1 - centre) / (n - 1 - moved).clamp(min=1)
    warped = torch.where(t < moved, before, after)
    at = torch.where((t < n) & (n > 2 * reach), warped, t)
    low = at.long()
    high = torch.minimum(low + 1, (n - 1).maximum(low))
    first, second = (x.gather(1, i[..., None].expand_as(x)) for i in (low, high))
    return torch.lerp(first, second, (at - low)[..., None].to(x.dtype))
