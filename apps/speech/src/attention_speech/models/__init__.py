"""The networks of this app: a recogniser of speech, and a language model for its search."""

from attention_speech.models.recogniser import Recogniser, Size

__all__ = ["Recogniser", "Size"]
