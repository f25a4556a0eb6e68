"""From waves to what the network sees: a log-mel filterbank, normalised."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_speech.augment import Masks, augment

RATE = 16_000  # samples a second
HOP = 160  # samples a frame, 10 ms
_SILENCE = 1e-10  # the least power that has a logarithm
_RANGE = 80.0  # decibels below the loudest that are told apart


@dataclass(frozen=True)
class Bank:
    """A filterbank: how many mel bands, over how long a window, and how they are normalised.

    `normalise` is by the mean and deviation of each `utterance`, or of all that training has seen
    (`global`), which is gathered in the first `epochs` epochs.

    Raises ValueError for an argument out of its range.

    >>> Bank(bands=0)
    Traceback (most recent call last):
    ValueError: model.bank: bands must be from 1 to 201, got 0
    """

    bands: int = 80
    n_fft: int = 400
    window_ms: float = 25.0
    normalise: Literal["utterance", "global"] = "utterance"
    epochs: int = 3

    def __post_init__(self) -> None:
        if self.normalise not in ("utterance", "global"):
            kind = self.normalise
            raise ValueError(f"model.bank: normalise must be utterance or global, got {kind!r}")
        most = self.n_fft // 2 + 1
        if not 1 <= self.bands <= most:
            raise ValueError(f"model.bank: bands must be from 1 to {most}, got {self.bands}")
        least, longest = 1000 * HOP / RATE, 1000 * self.n_fft / RATE
        if not least <= self.window_ms <= longest:
            asked = f"from {least:g} to the {longest:g} ms of n_fft, got {self.window_ms:g}"
            raise ValueError(f"model.bank: window_ms must be {asked}")


def frames(lengths: Tensor) -> Tensor:
    """How many frames waves of so many samples have: one at each multiple of 10 ms from 0.

    >>> frames(torch.tensor([0, 159, 160]))
    tensor([1, 1, 2])
    """
    return 1 + lengths // HOP


def real(lengths: Tensor, size: int) -> Tensor:
    """Which of `size` places are real, (B, size).

    >>> real(torch.tensor([2]), 3)
    tensor([[ True,  True, False]])
    """
    return torch.arange(size, device=lengths.device) < lengths[:, None]


class Decibels(nn.Module):
    r"""Power of each mel band in decibels, at most 80 below the loudest of its utterance.

    .. math:: x_{tb} = 10 \log_{10} \sum_f M_{fb} \, |\mathrm{STFT}(s)_{tf}|^2

    Equal to speechbrain's `Fbank` where nothing is padded; the loudest is a real frame's. Waves
    (B, T) are zero where padded; what is beyond an utterance is 0.

    Source: https://github.com/speechbrain/speechbrain (lobes/features.py)

    >>> Decibels(Bank(bands=40))(torch.zeros(2, 320), torch.tensor([320, 100]))[0].shape
    torch.Size([2, 3, 40])
    """

    matrix: Tensor
    window: Tensor

    def __init__(self, bank: Bank) -> None:
        super().__init__()
        from speechbrain.processing.features import Filterbank

        self.n_fft, self.window_length = bank.n_fft, round(RATE * bank.window_ms / 1000)
        mel = Filterbank(n_mels=bank.bands, n_fft=bank.n_fft, log_mel=False)
        matrix = mel(torch.eye(bank.n_fft // 2 + 1)[None])[0]  # (frequencies, bands)
        self.register_buffer("matrix", matrix, persistent=False)
        window = torch.hamming_window(self.window_length)
        self.register_buffer("window", window, persistent=False)

    def forward(self, waves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Decibels (B, 1 + T // 160, bands), and how many frames of each are real."""
        waves = F.pad(waves, (0, int(waves.shape[1] == 0)))  # the STFT of nothing is an error
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
            x = 10 * (power @ self.matrix.float()).clamp(min=_SILENCE).log10()
        number = frames(lengths)
        beyond = ~real(number, x.shape[1])[..., None]
        loudest = x.masked_fill(beyond, -torch.inf).amax((1, 2), keepdim=True)
        return x.maximum(loudest - _RANGE).masked_fill(beyond, 0.0), number


class Normalisation(nn.Module):
    r"""Each band with mean 0 and deviation 1, over an utterance or over all that was gathered.

    .. math:: \frac{x - \mu}{\max(\sigma, \epsilon)}, \qquad
        \mu \leftarrow \mu + w (\bar x - \mu), \quad
        \sigma^2 \leftarrow \sigma^2 + w (s^2 - \sigma^2) + w (1 - w) (\bar x - \mu)^2

    with w the part that a batch's real frames, of all devices, are of all that were seen: the exact
    moments of them all. They are in the state_dict, unlike those of speechbrain's
    `InputNormalization`. Before anything is gathered the features stay as they are.

    >>> x = torch.tensor([[[1.0], [3.0], [0.0]]])
    >>> Normalisation(1, "utterance")(x, torch.tensor([2])).flatten().tolist()
    [-1.0, 1.0, 0.0]
    """

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, bands: int, over: str, eps: float = 1e-5) -> None:
        super().__init__()
        self.over, self.eps = over, eps
        if over == "global":
            self.register_buffer("count", torch.zeros((), dtype=torch.long))
            self.register_buffer("mean", torch.zeros(bands))
            self.register_buffer("variance", torch.ones(bands))

    @torch.no_grad()
    def gather(self, x: Tensor, number: Tensor) -> None:
        """Add the real frames of a batch to the moments; of an utterance's there is no need."""
        if self.over != "global":
            return
        mask = real(number, x.shape[1])[..., None]
        x = x.float()
        count = _summed(number.sum())
        mean = _summed((x * mask).sum((0, 1))) / count
        variance = _summed(((x - mean).square() * mask).sum((0, 1))) / count
        self.count += count
        part, apart = count / self.count, mean - self.mean
        self.variance += part * (variance - self.variance) + part * (1 - part) * apart.square()
        self.mean += part * apart

    def forward(self, x: Tensor, number: Tensor) -> Tensor:
        """Features (B, T, bands), 0 beyond the real frames."""
        mask = real(number, x.shape[1])[..., None]
        if self.over == "global":
            mean, deviation = self.mean, self.variance.sqrt()
        else:
            n = number[:, None, None]
            mean = (x * mask).sum(1, keepdim=True) / n
            deviation = (((x - mean).square() * mask).sum(1, keepdim=True) / n).sqrt()
        return ((x - mean) / deviation.clamp(min=self.eps)).masked_fill(~mask, 0.0)


def _summed(x: Tensor) -> Tensor:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(x)
    return x


class Features(nn.Module):
    """Waves (B, T) to features (B, t, bands), masked and warped while training.

    >>> features = Features(Bank(), Masks()).eval()
    >>> x, number = features(torch.randn(2, 1600), torch.tensor([1600, 800]))
    >>> x.shape, number.tolist()
    (torch.Size([2, 11, 80]), [11, 6])
    """

    def __init__(self, bank: Bank, masks: Masks) -> None:
        super().__init__()
        self.decibels, self.masks = Decibels(bank), masks
        self.normalise = Normalisation(bank.bands, bank.normalise)

    def forward(
        self, waves: Tensor, lengths: Tensor, gather: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Features and their numbers of real frames; `gather` adds to the moments first."""
        x, number = self.decibels(waves, lengths)
        if gather:
            self.normalise.gather(x, number)
        x = self.normalise(x, number)
        return (augment(x, number, self.masks) if self.training else x), number
