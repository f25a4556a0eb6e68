"""The networks: a speech recognizer, and a language model for its beam search."""

from attention_speech.models.recognizer import Recognizer, RecognizerConfig, SpeechEncoder

__all__ = ["Recognizer", "RecognizerConfig", "SpeechEncoder"]
