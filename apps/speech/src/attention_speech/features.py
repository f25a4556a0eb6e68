"""Compute the input of the network from waves: normalized, augmented log-mel spectrograms."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from attention_core.checks import check_ints, check_numbers, check_sizes
from torch import Tensor, nn

from attention_speech.audio import SAMPLE_RATE

HOP = 160  # samples a frame, 10 ms
_MIN_POWER = 1e-10  # smaller powers are raised to it before the logarithm
_TOP_DB = 80.0  # decibels below the loudest entry, at which values are clamped


@dataclass(frozen=True)
class FbankConfig:
    """Settings of the mel filterbank and of its normalization.

    Args:
        n_mels: Mel bands.
        n_fft: Samples of a spectrum.
        window_ms: Milliseconds of a window.
        normalize: Mean and deviation of each `utterance`, or of all training frames (`global`).
        stats_epochs: First epochs, in which the frames of `global` are accumulated.
    """

    n_mels: int = 80
    n_fft: int = 400
    window_ms: float = 25.0
    normalize: Literal["utterance", "global"] = "utterance"
    stats_epochs: int = 3

    def __post_init__(self) -> None:
        check_sizes("model.fbank", n_fft=self.n_fft)
        check_ints("model.fbank", 0, stats_epochs=self.stats_epochs)
        check_ints("model.fbank", 1, self.n_fft // 2 + 1, n_mels=self.n_mels)
        shortest, longest = 1000 * HOP / SAMPLE_RATE, 1000 * self.n_fft / SAMPLE_RATE
        check_numbers("model.fbank", shortest, longest, window_ms=self.window_ms)


def num_frames(lengths: Tensor) -> Tensor:
    """Count the frames of waves: one at each multiple of 10 ms, beginning at 0."""
    return 1 + lengths // HOP


def length_mask(lengths: Tensor, size: int) -> Tensor:
    """Return the mask (B, size) of valid positions, True below each length."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


class LogMelSpectrogram(nn.Module):
    r"""Power of each mel band in decibels, clamped at 80 below the loudest of the utterance.

    .. math:: x_{tb} = 10 \log_{10} \sum_f M_{fb} \, |\mathrm{STFT}(s)_{tf}|^2

    Equal to speechbrain's `Fbank` without padding. With padding, only valid frames count for the
    loudest, and all others are 0. Waves (B, T) must be 0 where padded.

    Source: https://github.com/speechbrain/speechbrain (lobes/features.py)
    """

    matrix: Tensor
    window: Tensor

    def __init__(self, config: FbankConfig) -> None:
        super().__init__()
        from speechbrain.processing.features import Filterbank

        self.n_fft = config.n_fft
        self.window_length = round(SAMPLE_RATE * config.window_ms / 1000)
        mel = Filterbank(n_mels=config.n_mels, n_fft=config.n_fft, log_mel=False)
        matrix = mel(torch.eye(config.n_fft // 2 + 1)[None])[0]  # (frequencies, mels)
        self.register_buffer("matrix", matrix, persistent=False)
        self.register_buffer("window", torch.hamming_window(self.window_length), persistent=False)

    def forward(self, waves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return decibels (B, 1 + T // 160, mels), and the number of valid frames (B,)."""
        waves = F.pad(waves, (0, int(waves.shape[1] == 0)))  # torch.stft refuses an empty wave
        with torch.autocast(waves.device.type, enabled=False):
            spectrum = torch.stft(
                waves.float(),
                self.n_fft,
                HOP,
                self.window_length,
                self.window.float(),
                pad_mode="constant",
                return_complex=True,
            )
            power = torch.view_as_real(spectrum).square().sum(-1).transpose(1, 2)  # (B, t, f)
            x = 10 * (power @ self.matrix.float()).clamp(min=_MIN_POWER).log10()
        frames = num_frames(lengths)
        padding = ~length_mask(frames, x.shape[1])[..., None]
        loudest = x.masked_fill(padding, -torch.inf).amax((1, 2), keepdim=True)
        return x.maximum(loudest - _TOP_DB).masked_fill(padding, 0.0), frames


class FeatureNormalization(nn.Module):
    r"""Normalize each band to mean 0 and deviation 1, over an utterance or the training frames.

    .. math:: \frac{x - \mu}{\max(\sigma, \epsilon)}, \qquad
        \mu \leftarrow \mu + w (\bar x - \mu), \quad
        \sigma^2 \leftarrow \sigma^2 + w (s^2 - \sigma^2) + w (1 - w) (\bar x - \mu)^2

    where w is the number of valid frames in the batch of all devices, divided by the number seen
    so far: the result is the exact mean and variance of all frames. Before the first update,
    features stay as they are. Unlike those of speechbrain's `InputNormalization`, the statistics
    are in the state_dict.
    """

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, n_mels: int, over: str, eps: float = 1e-5) -> None:
        super().__init__()
        self.over, self.eps = over, eps
        if over == "global":
            self.register_buffer("count", torch.zeros((), dtype=torch.long))
            self.register_buffer("mean", torch.zeros(n_mels))
            self.register_buffer("variance", torch.ones(n_mels))

    @torch.no_grad()
    def update_statistics(self, x: Tensor, lengths: Tensor) -> None:
        """Add the valid frames of a batch to the global statistics; do nothing for `utterance`."""
        if self.over != "global":
            return
        mask = length_mask(lengths, x.shape[1])[..., None]
        x = x.float()
        count = _sum_over_devices(lengths.sum())
        mean = _sum_over_devices((x * mask).sum((0, 1))) / count
        variance = _sum_over_devices(((x - mean).square() * mask).sum((0, 1))) / count
        self.count += count
        w, shift = count / self.count, mean - self.mean
        self.variance += w * (variance - self.variance) + w * (1 - w) * shift.square()
        self.mean += w * shift

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Normalize features (B, T, mels), and set padded frames to 0."""
        mask = length_mask(lengths, x.shape[1])[..., None]
        if self.over == "global":
            mean, deviation = self.mean, self.variance.sqrt()
        else:
            n = lengths[:, None, None]
            mean = (x * mask).sum(1, keepdim=True) / n
            deviation = (((x - mean).square() * mask).sum(1, keepdim=True) / n).sqrt()
        return ((x - mean) / deviation.clamp(min=self.eps)).masked_fill(~mask, 0.0)


def _sum_over_devices(x: Tensor) -> Tensor:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(x)
    return x


@dataclass(frozen=True)
class SpecAugment:
    """SpecAugment of normalized features; 0 switches a part off.

    Each utterance has its own masks within its valid frames. Masked entries are 0, the mean. The
    time masks of torchaudio and speechbrain also fall into padding, and speechbrain's warp
    interpolates by cubic instead of linear functions.

    Args:
        warp: Greatest shift in frames.
        num_freq_masks: Masks of bands.
        freq_width: Bands below which the width of a mask is drawn.
        num_time_masks: Masks of frames.
        time_width: Frames below which the width of a mask is drawn.

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


class FeatureExtractor(nn.Module):
    """Convert waves (B, T) to normalized features (B, t, mels), with SpecAugment in training."""

    def __init__(self, fbank: FbankConfig, spec_augment: SpecAugment) -> None:
        super().__init__()
        self.spectrogram, self.spec_augment = LogMelSpectrogram(fbank), spec_augment
        self.normalization = FeatureNormalization(fbank.n_mels, fbank.normalize)

    def forward(
        self, waves: Tensor, lengths: Tensor, update_statistics: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return features, and the number of valid frames (B,)."""
        x, frames = self.spectrogram(waves, lengths)
        if update_statistics:
            self.normalization.update_statistics(x, frames)
        x = self.normalization(x, frames)
        return (self.spec_augment(x, frames) if self.training else x), frames
