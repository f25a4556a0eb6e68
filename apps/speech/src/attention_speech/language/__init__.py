"""A language model of the transcripts, for the beam search of the recognizer."""

from experiment_kit.app import AppSpec

from attention_speech.language.data import Transcripts
from attention_speech.language.module import LanguageModel

__all__ = ["APP", "LanguageModel", "Transcripts"]

APP = AppSpec(
    name="speech",
    model=LanguageModel,
    data=Transcripts,
    monitor="val/score",
    links={"vocab_size": "vocab_size", "tokenizer_file": "tokenizer_file"},
)
