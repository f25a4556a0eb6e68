"""A language model of the transcripts, for the search of the recogniser."""

from attention_speech.language.data import Transcripts
from attention_speech.language.module import LanguageModel

__all__ = ["LanguageModel", "Transcripts"]
