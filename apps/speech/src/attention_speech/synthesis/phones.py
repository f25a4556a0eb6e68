"""The sounds of the ten digit words, as targets of a formant synthesizer.

Vowels follow Peterson and Barney (1952), consonants Klatt (1980), rounded; a diphthong is two
vowels. https://doi.org/10.1121/1.1906875, https://doi.org/10.1121/1.383940
"""

from typing import NamedTuple


class Phone(NamedTuple):
    """Duration, three formants in Hz, amplitudes of voice and noise, and the band of the noise."""

    seconds: float
    formants: tuple[float, float, float] | None
    voice: float
    noise: float = 0.0
    center: float = 4000.0
    width: float = 1000.0


PHONES = {
    "_": Phone(0.05, None, 0.0),  # silence; formants glide through it
    "AA": Phone(0.10, (730, 1090, 2440), 1.0),
    "AH": Phone(0.09, (640, 1190, 2390), 1.0),
    "AO": Phone(0.13, (570, 840, 2410), 1.0),
    "EH": Phone(0.10, (530, 1840, 2480), 1.0),
    "IH": Phone(0.08, (390, 1990, 2550), 1.0),
    "IY": Phone(0.15, (270, 2290, 3010), 1.0),
    "OH": Phone(0.09, (500, 900, 2400), 1.0),
    "UH": Phone(0.07, (440, 1020, 2240), 0.9),
    "UW": Phone(0.16, (300, 870, 2240), 1.0),
    "N": Phone(0.08, (280, 1600, 2600), 0.4),
    "R": Phone(0.07, (330, 1060, 1500), 0.7),
    "W": Phone(0.07, (300, 610, 2200), 0.6),
    "F": Phone(0.10, (340, 1100, 2080), 0.0, 0.15, 5000, 2500),
    "S": Phone(0.12, (320, 1390, 2530), 0.0, 0.45, 6200, 900),
    "TH": Phone(0.10, (320, 1290, 2540), 0.0, 0.12, 6000, 2000),
    "V": Phone(0.06, (220, 1100, 2080), 0.35, 0.08, 5000, 2500),
    "Z": Phone(0.10, (240, 1390, 2530), 0.3, 0.35, 6200, 900),
    "K": Phone(0.03, (300, 1990, 2850), 0.0, 0.40, 2300, 500),
    "T": Phone(0.03, (400, 1600, 2600), 0.0, 0.45, 4500, 1200),
}
SPELLING = {
    "ZERO": "Z IH R OH UW",
    "ONE": "W AH N",
    "TWO": "_ T UW",
    "THREE": "TH R IY",
    "FOUR": "F AO R",
    "FIVE": "F AA IH V",
    "SIX": "S IH _ K S",
    "SEVEN": "S EH V AH N",
    "EIGHT": "EH IY _ T",
    "NINE": "N AA IH N",
}
DIGITS = tuple(SPELLING)
