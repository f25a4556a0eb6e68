"""SpecAugment: warp features in time, and mask bands of time and frequency."""

from dataclasses import dataclass

import torch
from attention_core.checks import check_ints
from torch import Tensor


@dataclass(frozen=True)
class SpecAugment:
    """SpecAugment of normalized features; 0 switches a part off.

    `warp` is the largest shift in frames. A mask's width is drawn below `freq_width` or
    `time_width`, and each utterance has its own masks within its valid frames. Masked entries are
    0, the mean. The time masks of torchaudio and speechbrain also fall into padding, and
    speechbrain's warp interpolates by cubic instead of linear functions.

    Source: https://arxiv.org/abs/1904.08779
    """

    warp: int = 5
    num_freq_masks: int = 2
    freq_width: int = 30
    num_time_masks: int = 2
    time_width: int = 40

    def __post_init__(self) -> None:
        check_ints("model.spec_augment", 0, **vars(self))

    def __call__(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Augment features (B, T, mels), whose `lengths` (B,) count valid frames."""
        if self.warp:
            x = _warp_time(x, lengths, self.warp)
        mels = torch.full_like(lengths, x.shape[2])
        in_time = _draw_masks(lengths, x.shape[1], self.num_time_masks, self.time_width)
        in_freq = _draw_masks(mels, x.shape[2], self.num_freq_masks, self.freq_width)
        return x.masked_fill(in_time[:, :, None] | in_freq[:, None, :], 0.0)


def _draw_masks(lengths: Tensor, size: int, count: int, width: int) -> Tensor:
    """Draw the union of `count` masks for each row, (B, size)."""
    shape = (len(lengths), count, 1)
    widths = (torch.rand(shape, device=lengths.device) * width).long()
    free = (lengths[:, None, None] - widths + 1).clamp(min=1)
    start = (torch.rand(shape, device=lengths.device) * free).long()
    index = torch.arange(size, device=lengths.device)
    return ((start <= index) & (index < start + widths)).any(1)


def _warp_time(x: Tensor, lengths: Tensor, reach: int) -> Tensor:
    """Move a random frame by less than `reach`, and stretch time linearly on both sides of it."""
    n = lengths[:, None]
    draws = torch.rand(2, len(x), 1, device=x.device)
    center = reach + (draws[0] * (n - 2 * reach)).long()
    target = center + 1 - reach + (draws[1] * 2 * reach).long()
    t = torch.arange(x.shape[1], device=x.device)
    before = t * center / target
    after = center + (t - target) * (n - 1 - center) / (n - 1 - target).clamp(min=1)
    warped = torch.where(t < target, before, after)
    source = torch.where((t < n) & (n > 2 * reach), warped, t)  # (B, T), in frames
    low = source.long()
    high = torch.minimum(low + 1, (n - 1).maximum(low))
    first, second = (x.gather(1, i[..., None].expand_as(x)) for i in (low, high))
    return torch.lerp(first, second, (source - low)[..., None].to(x.dtype))
