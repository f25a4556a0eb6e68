"""A formant synthesizer: glottal pulses and noise, filtered by the resonances of a vocal tract.

Vowels follow Peterson and Barney (1952), consonants Klatt (1980), rounded; a diphthong is two
vowels. https://doi.org/10.1121/1.1906875, https://doi.org/10.1121/1.383940
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_RATE = 16000
_HOP, _FRAME, _FFT = 256, 512, 1024  # the second half of the FFT is for the tails of resonances
_BANDWIDTHS = (60.0, 90.0, 150.0, 200.0, 250.0)  # Hz
_HIGH_FORMANTS = (3500.0, 4500.0)  # formants 4 and 5, which do not move
_TILT = 300.0  # Hz: above it, the spectrum of pulses at the lips falls by 6 dB an octave
_GLIDE = 0.35  # fraction of a phone, at each end, in which formants move
_FADE = 0.012  # longest time in seconds in which amplitudes change


class Phone(NamedTuple):
    """Duration, three formants in Hz, amplitudes of voice and noise, and the band of the noise."""

    seconds: float
    formants: tuple[float, float, float] | None
    voice: float
    noise: float = 0.0
    center: float = 4000.0
    width: float = 1000.0


PHONES = {
    "_": Phone(0.05, None, 0.0),  # silence; formants glide through it
    "AA": Phone(0.10, (730, 1090, 2440), 1.0),
    "AH": Phone(0.09, (640, 1190, 2390), 1.0),
    "AO": Phone(0.13, (570, 840, 2410), 1.0),
    "EH": Phone(0.10, (530, 1840, 2480), 1.0),
    "IH": Phone(0.08, (390, 1990, 2550), 1.0),
    "IY": Phone(0.15, (270, 2290, 3010), 1.0),
    "OH": Phone(0.09, (500, 900, 2400), 1.0),
    "UH": Phone(0.07, (440, 1020, 2240), 0.9),
    "UW": Phone(0.16, (300, 870, 2240), 1.0),
    "N": Phone(0.08, (280, 1600, 2600), 0.4),
    "R": Phone(0.07, (330, 1060, 1500), 0.7),
    "W": Phone(0.07, (300, 610, 2200), 0.6),
    "F": Phone(0.10, (340, 1100, 2080), 0.0, 0.15, 5000, 2500),
    "S": Phone(0.12, (320, 1390, 2530), 0.0, 0.45, 6200, 900),
    "TH": Phone(0.10, (320, 1290, 2540), 0.0, 0.12, 6000, 2000),
    "V": Phone(0.06, (220, 1100, 2080), 0.35, 0.08, 5000, 2500),
    "Z": Phone(0.10, (240, 1390, 2530), 0.3, 0.35, 6200, 900),
    "K": Phone(0.03, (300, 1990, 2850), 0.0, 0.40, 2300, 500),
    "T": Phone(0.03, (400, 1600, 2600), 0.0, 0.45, 4500, 1200),
}
SPELLING = {
    "ZERO": "Z IH R OH UW",
    "ONE": "W AH N",
    "TWO": "_ T UW",
    "THREE": "TH R IY",
    "FOUR": "F AO R",
    "FIVE": "F AA IH V",
    "SIX": "S IH _ K S",
    "SEVEN": "S EH V AH N",
    "EIGHT": "EH IY _ T",
    "NINE": "N AA IH N",
}
DIGITS = tuple(SPELLING)


class Speaker(NamedTuple):
    """Pitch in Hz, factors on the formants and durations of the table, and breath noise."""

    pitch: float
    formants: float
    seconds: float
    breath: float


def draw_speaker(seed: int) -> Speaker:
    """Draw a speaker; a higher voice tends to have a shorter vocal tract."""
    rng = np.random.default_rng((seed, 0))
    height = rng.random()
    return Speaker(
        pitch=85 * 2.7**height,
        formants=0.94 + 0.2 * height + rng.uniform(-0.03, 0.03),
        seconds=rng.uniform(0.8, 1.25),
        breath=rng.uniform(0.05, 0.4),
    )


def synthesize_words(words: Sequence[str], speaker: Speaker, seed: int) -> NDArray[np.float32]:
    """Return the wave (T,) of digit words at 16 kHz; `seed` varies its timing and pitch.

    y = sum over frames of window (voice V T + noise F): the short-time spectrum of pulses times
    tilt and resonances, T(f) = prod over i of (1 - b_i - c_i) / (1 - b_i / z - c_i / z^2), and
    that of noise times a band. Formants move linearly from phone to phone.
    """
    rng = np.random.default_rng((seed, 1))
    phones, seconds = _draw_durations(words, speaker, rng)
    tracks = _make_tracks(phones, seconds, speaker)
    count = len(tracks.voice)
    voice = _draw_pulses(speaker, count, rng) + speaker.breath * rng.standard_normal(count)
    spectrum = _compute_stft(voice * tracks.voice) * _tract_response(tracks.formants)
    noise = rng.standard_normal(count) * tracks.noise
    spectrum += _compute_stft(noise) * _noise_response(tracks.center, tracks.width)
    wave = _overlap_add(spectrum, count)
    wave *= rng.uniform(0.2, 0.8) / np.abs(wave).max()
    return (wave + 0.0005 * rng.standard_normal(count)).astype(np.float32)


def synthesize_digits(count: int) -> list[Tensor]:
    """Return waves (T,) of four digits each, at 16 kHz, by as many speakers."""
    words = [[DIGITS[(seed + 3 * i) % len(DIGITS)] for i in range(4)] for seed in range(count)]
    waves = [synthesize_words(w, draw_speaker(i), seed=i) for i, w in enumerate(words)]
    return [torch.from_numpy(wave) for wave in waves]


class _Tracks(NamedTuple):
    """Amplitudes of samples (T,); the noise band of frames (N,) and their formants (N, 3)."""

    voice: NDArray[np.float64]
    noise: NDArray[np.float64]
    center: NDArray[np.float64]
    width: NDArray[np.float64]
    formants: NDArray[np.float64]


def _draw_durations(
    words: Sequence[str], speaker: Speaker, rng: np.random.Generator
) -> tuple[list[Phone], NDArray[np.float64]]:
    """Return the phones of words, with silence around each word, and their seconds."""
    names = ["_"]
    for word in words:
        names += [*SPELLING[word].split(), "_"]
    phones = [PHONES[name] for name in names]
    seconds = np.array([phone.seconds for phone in phones]) * speaker.seconds
    seconds *= np.exp(0.1 * rng.standard_normal(len(seconds)))
    silences = np.cumsum([0] + [len(SPELLING[word].split()) + 1 for word in words])
    seconds[silences] = rng.uniform(0.04, 0.2, len(silences))
    return phones, seconds


def _make_tracks(
    phones: Sequence[Phone], seconds: NDArray[np.float64], speaker: Speaker
) -> _Tracks:
    end = np.cumsum(seconds)
    start = end - seconds
    frame_times = np.arange(0, end[-1], _HOP / _RATE)
    sample_times = np.arange(len(frame_times) * _HOP) / _RATE
    fade = np.minimum(_FADE, seconds / 4)
    knots = np.stack([start + fade, end - fade], 1).ravel()

    def hold_values(values: Sequence[float], times: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.interp(times, knots, np.repeat(values, 2))

    moving = [(i, phone.formants) for i, phone in enumerate(phones) if phone.formants]
    glide = np.array([[start[i] + _GLIDE * seconds[i], end[i] - _GLIDE * seconds[i]]
                      for i, _ in moving]).ravel()  # fmt: skip
    targets = np.repeat(np.array([formants for _, formants in moving]), 2, axis=0)
    formants = np.stack([np.interp(frame_times, glide, column) for column in targets.T], 1)
    return _Tracks(
        hold_values([phone.voice for phone in phones], sample_times),
        hold_values([phone.noise for phone in phones], sample_times),
        hold_values([phone.center for phone in phones], frame_times),
        hold_values([phone.width for phone in phones], frame_times),
        formants * speaker.formants,
    )


def _draw_pulses(speaker: Speaker, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return one pulse a period, of unit power, with a falling pitch that varies by 3 %."""
    progress = np.linspace(0, 1, count)
    turns, phase = rng.uniform(1, 3), rng.uniform(0, 2 * np.pi)
    vibrato = 0.03 * np.sin(2 * np.pi * turns * progress + phase)
    pitch = speaker.pitch * (1.1 - 0.25 * progress + vibrato)
    period = np.floor(np.cumsum(pitch) / _RATE)
    return np.diff(period, prepend=0) * np.sqrt(_RATE / pitch)


def _compute_stft(wave: NDArray[np.float64]) -> NDArray[np.complex64]:
    """Return the spectrum (N, bins) of frames centered at the hops."""
    padded = np.pad(wave, _FRAME // 2).astype(np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FRAME)[:-1:_HOP]
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_FRAME) / _FRAME)).astype(np.float32)
    return np.fft.rfft(frames * window, _FFT).astype(np.complex64)


def _overlap_add(spectrum: NDArray[np.complex64], count: int) -> NDArray[np.float64]:
    """Return the wave of a spectrum (N, bins) whose windows sum to 1 at each sample."""
    frames = np.fft.irfft(spectrum, _FFT).reshape(len(spectrum), -1, _HOP)
    wave = np.zeros((len(spectrum) + _FFT // _HOP, _HOP))
    for part in range(_FFT // _HOP):
        wave[part : part + len(spectrum)] += frames[:, part]
    return wave.ravel()[_FRAME // 2 :][:count]


def _tract_response(formants: NDArray[np.float64]) -> NDArray[np.complex64]:
    """Return tilt and resonances (N, bins), of unit power in each frame; formants (N, 3) in Hz."""
    bins = np.arange(_FFT // 2 + 1)
    z = np.exp(-2j * np.pi * bins / _FFT).astype(np.complex64)  # 1 / z on the unit circle
    fixed = np.broadcast_to(_HIGH_FORMANTS, (len(formants), len(_HIGH_FORMANTS)))
    denominator = np.ones((len(formants), len(bins)), np.complex64)
    for column, bandwidth in zip(np.hstack([formants, fixed]).T, _BANDWIDTHS, strict=True):
        c = -np.exp(-2 * np.pi * bandwidth / _RATE)
        b = 2 * np.exp(-np.pi * bandwidth / _RATE) * np.cos(2 * np.pi * column / _RATE)
        denominator *= (1 - c * z * z)[None] - b.astype(np.float32)[:, None] * z
    gain = (1 / (1 + bins * _RATE / _FFT / _TILT)).astype(np.float32) / denominator
    return gain / np.sqrt(np.mean(np.abs(gain) ** 2, axis=1, keepdims=True))


def _noise_response(center: NDArray[np.float64], width: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return a bell of unit power around a frequency in Hz, (N, bins)."""
    bins = np.arange(_FFT // 2 + 1) * _RATE / _FFT
    bell = np.exp(-0.5 * ((bins - center[:, None]) / width[:, None]) ** 2)
    return (bell / np.sqrt(np.mean(bell**2, axis=1, keepdims=True))).astype(np.float32)
