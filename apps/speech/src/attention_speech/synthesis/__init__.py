"""Speech that needs no recordings: digit words, synthesized for many speakers."""

from attention_speech.synthesis.formants import DIGITS, Speaker, draw_speaker, synthesize_words

__all__ = ["DIGITS", "Speaker", "draw_speaker", "synthesize_words"]
