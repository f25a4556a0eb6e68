"""CMU's an4: spelled names, addresses and numbers, in the layout of its archives.

https://www.speech.cs.cmu.edu/databases/an4
"""

import re
from pathlib import Path

import numpy as np
from experiment_kit.data.local import locate
from experiment_kit.errors import UserError

from attention_speech.audio import Manifest, Transcript, Utterance, matched
from attention_speech.data.base import TOPS, SpeechData
from attention_speech.data.librispeech import lines

_SEED = 0  # of the development speakers, the same for every run
_SHARE = 0.1  # of the training speakers
_FOLDERS = ("an4", ".")
_HINT = "`python -m attention_speech.download an4` fetches it"
_KINDS = (".sph", ".wav", ".raw", ".flac")


class An4(SpeechData):
    """The official training and test parts; a tenth of the training speakers chooses the epoch.

    No development part is official.

    Source: https://www.speech.cs.cmu.edu/databases/an4

    >>> An4("an4").known
    ('an4',)
    """

    known = ("an4",)

    @staticmethod
    def whereabouts(name: str) -> Path:
        """The folder of etc and wav; raises UserError where there is none."""
        return _locate(None)

    def split(self) -> dict[str, list[Utterance]]:
        """The official parts, and the development speakers."""
        root = _locate(self.data_dir)
        found = {part: read_part(root, part) for part in ("train", "test")}
        for name, part in found.items():
            for note in part.notes:
                self.say(f"{name}: {note}")
        train = found["train"].utterances
        speakers = sorted({one.speaker for one in train})
        held = max(1, round(_SHARE * len(speakers)))
        chosen = set(np.random.default_rng(_SEED).permutation(speakers)[:held].tolist())
        return {
            "train": [one for one in train if one.speaker not in chosen],
            "val": [one for one in train if one.speaker in chosen],
            "test": found["test"].utterances,
        }


def _locate(data_dir: str | None) -> Path:
    def is_it(place: Path) -> bool:
        return (place / "etc" / "an4_train.transcription").is_file()

    return locate(data_dir, _FOLDERS, is_it, _HINT, TOPS)


def read_part(root: Path, part: str) -> Manifest:
    """The utterances of etc/an4_<part>.transcription, whose files etc/an4_<part>.fileids lists.

    A line is `<s> WORDS </s> (name)`, in the test part without the marks; the folder of a file is
    its speaker. Raises UserError for a line that is none, and where no utterance can be used.
    """
    transcripts = {}
    path = root / "etc" / f"an4_{part}.transcription"
    speakers = {}
    audio = {}
    for line in lines(path.with_suffix(".fileids")):
        place = Path(line)
        speakers[place.name] = place.parent.name
        files = ((root / "wav" / line).with_suffix(kind) for kind in _KINDS)
        if file := next((file for file in files if file.is_file()), None):
            audio[place.name] = file
    for number, line in enumerate(lines(path), start=1):
        found = re.fullmatch(r"(.*)\((\S+)\)", line)
        if not found:
            raise UserError(f"{path}, line {number}: no (name) at its end: {line[:60]!r}")
        words = [word for word in found[1].split() if not re.fullmatch(r"<.*>|\+\+.*\+\+", word)]
        name = found[2]
        transcripts[name] = Transcript(" ".join(words).upper(), speakers.get(name, ""))
    return matched(f"an4_{part}", audio, transcripts)
