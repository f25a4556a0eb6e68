"""A formant synthesiser: glottal pulses and noise, shaped by the resonances of a vocal tract.

https://doi.org/10.1121/1.383940
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attention_speech.synthesis.phones import DIGITS, PHONES, SPELLING, Phone

_RATE = 16000
_HOP, _FRAME, _FFT = 256, 512, 1024  # the second half of the FFT is for the tails of resonances
_BANDWIDTHS = (60.0, 90.0, 150.0, 200.0, 250.0)  # Hz
_HIGHEST = (3500.0, 4500.0)  # formants 4 and 5, which do not move
_TILT = 300.0  # Hz: above it, pulses as they leave the lips fall by 6 dB an octave
_GLIDE = 0.35  # of a phone, at each end, in which formants move
_EDGE = 0.012  # seconds in which amplitudes change, at most


class Speaker(NamedTuple):
    """Pitch in Hz, formants and durations in parts of the table's, and noise among the pulses."""

    pitch: float
    formants: float
    seconds: float
    breath: float


def speaker(seed: int) -> Speaker:
    """Draw a speaker; a higher voice has, more or less, a shorter vocal tract.

    >>> speaker(0) == speaker(0), speaker(0) == speaker(1)
    (True, False)
    """
    draw = np.random.default_rng((seed, 0))
    height = draw.random()
    return Speaker(
        pitch=85 * 2.7**height,
        formants=0.94 + 0.2 * height + draw.uniform(-0.03, 0.03),
        seconds=draw.uniform(0.8, 1.25),
        breath=draw.uniform(0.05, 0.4),
    )


def say(words: Sequence[str], who: Speaker, seed: int) -> NDArray[np.float32]:
    """The wave (T,) of digit words at 16 kHz, with its own small accidents of time and pitch.

    y = sum over frames of window (voice V T + noise F): the short-time spectrum of pulses times
    the tilt and the resonances, T(f) = prod over i of (1 - b_i - c_i) / (1 - b_i / z - c_i / z^2),
    and that of noise times a band. Formants move on lines from phone to phone.

    Raises ValueError for no word at all, and for a word that is no digit.

    >>> say(["ONE", "TWO"], speaker(0), seed=0).dtype
    dtype('float32')
    """
    if not words or set(words) - set(DIGITS):
        raise ValueError(f"words must be some of {', '.join(DIGITS)}, got {list(words)}")
    draw = np.random.default_rng((seed, 1))
    phones, seconds = _timed(words, who, draw)
    tracks = _tracks(phones, seconds, who)
    count = len(tracks.voice)
    voiced = _pulses(who, count, draw) + who.breath * draw.standard_normal(count)
    spectrum = _spectrum(voiced * tracks.voice) * _tract(tracks.formants)
    noise = draw.standard_normal(count) * tracks.hiss
    spectrum += _spectrum(noise) * _band(tracks.centre, tracks.width)
    wave = _overlapped(spectrum, count)
    wave *= draw.uniform(0.2, 0.8) / np.abs(wave).max()
    return (wave + 0.0005 * draw.standard_normal(count)).astype(np.float32)


class _Tracks(NamedTuple):
    """Amplitudes at each sample, (T,); the band of the hiss (N,) and formants (N, 3) of frames."""

    voice: NDArray[np.float64]
    hiss: NDArray[np.float64]
    centre: NDArray[np.float64]
    width: NDArray[np.float64]
    formants: NDArray[np.float64]


def _timed(
    words: Sequence[str], who: Speaker, draw: np.random.Generator
) -> tuple[list[Phone], NDArray[np.float64]]:
    """Phones with silence around words, and their seconds."""
    names = ["_"]
    for word in words:
        names += [*SPELLING[word].split(), "_"]
    phones = [PHONES[name] for name in names]
    seconds = np.array([phone.seconds for phone in phones]) * who.seconds
    seconds *= np.exp(0.1 * draw.standard_normal(len(seconds)))
    ends = np.cumsum([0] + [len(SPELLING[word].split()) + 1 for word in words])
    seconds[ends] = draw.uniform(0.04, 0.2, len(ends))
    return phones, seconds


def _tracks(phones: Sequence[Phone], seconds: NDArray[np.float64], who: Speaker) -> _Tracks:
    end = np.cumsum(seconds)
    start = end - seconds
    time = np.arange(0, end[-1], _HOP / _RATE)
    sample = np.arange(len(time) * _HOP) / _RATE
    edge = np.minimum(_EDGE, seconds / 4)
    knots = np.stack([start + edge, end - edge], 1).ravel()

    def held(values: Sequence[float], at: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.interp(at, knots, np.repeat(values, 2))

    moving = [(i, phone.formants) for i, phone in enumerate(phones) if phone.formants]
    glide = np.array([[start[i] + _GLIDE * seconds[i], end[i] - _GLIDE * seconds[i]]
                      for i, _ in moving]).ravel()  # fmt: skip
    targets = np.repeat(np.array([formants for _, formants in moving]), 2, axis=0)
    formants = np.stack([np.interp(time, glide, column) for column in targets.T], 1)
    return _Tracks(
        held([phone.voice for phone in phones], sample),
        held([phone.hiss for phone in phones], sample),
        held([phone.centre for phone in phones], time),
        held([phone.width for phone in phones], time),
        formants * who.formants,
    )


def _pulses(who: Speaker, count: int, draw: np.random.Generator) -> NDArray[np.float64]:
    """One pulse a period, of unit power; the pitch falls, and wavers by 3 %."""
    place = np.linspace(0, 1, count)
    turns, begin = draw.uniform(1, 3), draw.uniform(0, 2 * np.pi)
    waver = 0.03 * np.sin(2 * np.pi * turns * place + begin)
    pitch = who.pitch * (1.1 - 0.25 * place + waver)
    period = np.floor(np.cumsum(pitch) / _RATE)
    return np.diff(period, prepend=0) * np.sqrt(_RATE / pitch)


def _spectrum(wave: NDArray[np.float64]) -> NDArray[np.complex64]:
    """(N, bins), the frames centred at the hops."""
    padded = np.pad(wave, _FRAME // 2).astype(np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FRAME)[:-1:_HOP]
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_FRAME) / _FRAME)).astype(np.float32)
    return np.fft.rfft(frames * window, _FFT).astype(np.complex64)


def _overlapped(spectrum: NDArray[np.complex64], count: int) -> NDArray[np.float64]:
    """The wave of a spectrum (N, bins) whose windows add up to 1 at each sample."""
    frames = np.fft.irfft(spectrum, _FFT).reshape(len(spectrum), -1, _HOP)
    wave = np.zeros((len(spectrum) + _FFT // _HOP, _HOP))
    for part in range(_FFT // _HOP):
        wave[part : part + len(spectrum)] += frames[:, part]
    return wave.ravel()[_FRAME // 2 :][:count]


def _tract(formants: NDArray[np.float64]) -> NDArray[np.complex64]:
    """Tilt and resonances (N, bins), of unit power in each frame; formants (N, 3) in Hz."""
    bins = np.arange(_FFT // 2 + 1)
    z = np.exp(-2j * np.pi * bins / _FFT).astype(np.complex64)  # 1 / z on the unit circle
    fixed = np.broadcast_to(_HIGHEST, (len(formants), len(_HIGHEST)))
    below = np.ones((len(formants), len(bins)), np.complex64)
    for column, bandwidth in zip(np.hstack([formants, fixed]).T, _BANDWIDTHS, strict=True):
        c = -np.exp(-2 * np.pi * bandwidth / _RATE)
        b = 2 * np.exp(-np.pi * bandwidth / _RATE) * np.cos(2 * np.pi * column / _RATE)
        below *= (1 - c * z * z)[None] - b.astype(np.float32)[:, None] * z
    gain = (1 / (1 + bins * _RATE / _FFT / _TILT)).astype(np.float32) / below
    return gain / np.sqrt(np.mean(np.abs(gain) ** 2, axis=1, keepdims=True))


def _band(centre: NDArray[np.float64], width: NDArray[np.float64]) -> NDArray[np.float32]:
    """A bell of unit power around a frequency in Hz, (N, bins)."""
    bins = np.arange(_FFT // 2 + 1) * _RATE / _FFT
    bell = np.exp(-0.5 * ((bins - centre[:, None]) / width[:, None]) ** 2)
    return (bell / np.sqrt(np.mean(bell**2, axis=1, keepdims=True))).astype(np.float32)
