"""Speech that the project makes by itself: ten words, many speakers."""

from attention_speech.synthesis.formants import Speaker, say, speaker
from attention_speech.synthesis.phones import DIGITS

__all__ = ["DIGITS", "Speaker", "say", "speaker"]
