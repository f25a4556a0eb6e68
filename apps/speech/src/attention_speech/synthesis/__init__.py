"""Speech that needs no recordings: digit words, synthesized for many speakers."""

from attention_speech.synthesis.formants import Speaker, draw_speaker, synthesize_words
from attention_speech.synthesis.phones import DIGITS

__all__ = ["DIGITS", "Speaker", "draw_speaker", "synthesize_words"]
