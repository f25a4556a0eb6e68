"""Speech that needs no recordings: digit words, synthesized for many speakers."""
