"""Audio files, and the utterances that are made of them."""

from attention_speech.audio.files import RATE, Header, UnusableAudio, header, load, read, resampled
from attention_speech.audio.manifest import Manifest, Transcript, Utterance, matched

__all__ = [
    "RATE",
    "Header",
    "Manifest",
    "Transcript",
    "UnusableAudio",
    "Utterance",
    "header",
    "load",
    "matched",
    "read",
    "resampled",
]
