"""The data sets: LibriSpeech, spoken digits, an4, and synthetic speech."""

from attention_speech.data import an4, fsdd, librispeech
from attention_speech.data.an4 import An4 as An4
from attention_speech.data.base import SpeechData as SpeechData
from attention_speech.data.fsdd import FreeSpokenDigits as FreeSpokenDigits
from attention_speech.data.librispeech import LibriSpeech as LibriSpeech
from attention_speech.data.synthetic import SyntheticDigits as SyntheticDigits
from attention_speech.data.wav_folder import WavFolder as WavFolder

DOWNLOADS = {**librispeech.DOWNLOADS, **fsdd.DOWNLOADS, **an4.DOWNLOADS}
