"""The data sets of the speech app: LibriSpeech, spoken digits, an4, and speech of our own."""

from attention_speech.data.an4 import An4
from attention_speech.data.base import SpeechData
from attention_speech.data.digits import Digits
from attention_speech.data.librispeech import LibriSpeech
from attention_speech.data.own import Own

__all__ = ["An4", "Digits", "LibriSpeech", "Own", "SpeechData"]
