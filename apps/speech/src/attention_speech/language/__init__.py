"""A language model of the transcripts, for the beam search of the recognizer."""

from attention_speech.language.data import Transcripts
from attention_speech.language.module import LanguageModel

__all__ = ["LanguageModel", "Transcripts"]
