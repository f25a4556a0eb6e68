"""Audio files, and the utterances that are made of them."""

from attention_speech.audio.files import (
    SAMPLE_RATE,
    AudioInfo,
    UnusableAudio,
    load_audio,
    probe_audio,
    read_audio,
    resample_wave,
)
from attention_speech.audio.manifest import Manifest, Transcript, Utterance, build_manifest

__all__ = [
    "SAMPLE_RATE",
    "AudioInfo",
    "Manifest",
    "Transcript",
    "UnusableAudio",
    "Utterance",
    "build_manifest",
    "load_audio",
    "probe_audio",
    "read_audio",
    "resample_wave",
]
