"""The data sets: LibriSpeech, spoken digits, an4, and synthetic speech."""

from attention_speech.data import an4, fsdd, librispeech
from attention_speech.data.an4 import An4
from attention_speech.data.base import SpeechData
from attention_speech.data.fsdd import FreeSpokenDigits
from attention_speech.data.librispeech import LibriSpeech
from attention_speech.data.synthetic import SyntheticDigits
from attention_speech.data.wav_folder import WavFolder

__all__ = [
    "DOWNLOADS",
    "An4",
    "FreeSpokenDigits",
    "LibriSpeech",
    "SpeechData",
    "SyntheticDigits",
    "WavFolder",
]

DOWNLOADS = {**librispeech.DOWNLOADS, **fsdd.DOWNLOADS, **an4.DOWNLOADS}
