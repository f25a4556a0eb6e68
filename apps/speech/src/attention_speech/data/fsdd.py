"""The Free Spoken Digit Dataset: single digits, joined to strings of one speaker.

https://github.com/Jakobovski/free-spoken-digit-dataset
"""

import re
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
from experiment_kit.data.datamodule import check_at_least, find_dataset
from experiment_kit.data.download import Download
from experiment_kit.errors import UserError

from attention_speech.audio import Transcript, Utterance, build_manifest
from attention_speech.data.base import GAP_SECONDS, SUBFOLDERS, SpeechData
from attention_speech.synthesis.formants import DIGITS

_SEED = 0  # draws the same strings for every run: the test set must not change
_MIN_DIGITS, _MAX_DIGITS = 2, 5  # in a string
_FOLDERS = ("fsdd", "fsdd_subset", "free-spoken-digit-dataset", ".")
_URL = "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/v1.0.10.zip"
_ARCHIVED = "free-spoken-digit-dataset-1.0.10"
DOWNLOADS = {"fsdd": (Download(_URL, "fsdd", _ARCHIVED),)}


class FreeSpokenDigits(SpeechData):
    """Strings of two to five digits of one speaker, with 0.1 s of silence between them.

    The strings are drawn once, and are the same for every run. Recordings have 8 kHz and are
    resampled.

    Args:
        val_speaker: Speaker of the validation split alone.
        test_speaker: Speaker of the test split alone.
        num_train: Strings to train on.
        num_val: Strings of the validation split.
        num_test: Strings of the test split.
    """

    DATASETS = ("fsdd",)

    def __init__(
        self,
        dataset_name: str = "fsdd",
        data_dir: str | None = None,
        *,
        token_type: Literal["unigram", "char"] = "char",
        val_speaker: str = "theo",
        test_speaker: str = "yweweler",
        num_train: int = 1200,
        num_val: int = 120,
        num_test: int = 200,
        **kwargs: Any,
    ) -> None:
        super().__init__(dataset_name, data_dir, token_type=token_type, **kwargs)
        self.sizes = {"train": num_train, "val": num_val, "test": num_test}
        check_at_least(1, num_train=num_train, num_val=num_val, num_test=num_test)
        if val_speaker == test_speaker:
            raise ValueError(f"data.val_speaker and test_speaker must differ, got {val_speaker!r}")
        self.held_out = {"val": val_speaker, "test": test_speaker}

    @classmethod
    def find_data(cls, dataset_name: str, data_dir: str | None = None) -> Path:
        """Return the folder that holds `recordings`."""
        hint = "`allpass data fsdd` fetches it"
        return find_dataset(
            data_dir, _FOLDERS, lambda path: (path / "recordings").is_dir(), hint, SUBFOLDERS
        )

    def list_data_files(self) -> Sequence[Path]:
        """Return the folder of the recordings."""
        return [self.find_data(self.dataset_name, self.data_dir) / "recordings"]

    def read_utterances(self) -> dict[str, list[Utterance]]:
        """Draw the strings of each split's speakers."""
        root = self.find_data(self.dataset_name, self.data_dir)
        audio = {path.stem: path for path in (root / "recordings").glob("*.wav")}
        transcripts = {  # a file is one digit; one of another name has no transcript
            name: Transcript(DIGITS[int(match[1])], match[2])
            for name in audio
            if (match := re.fullmatch(r"(\d)_(\w+)_\d+", name))
        }
        manifest = build_manifest(self.dataset_name, audio, transcripts)
        recordings = self.use_manifests({"": manifest})
        everyone = sorted({one.speaker for one in recordings})
        for split, speaker in self.held_out.items():
            if speaker not in everyone:
                raise UserError(f"data.{split}_speaker must be one of {', '.join(everyone)}, "
                                f"got {speaker!r}")  # fmt: skip
        speakers = {split: [speaker] for split, speaker in self.held_out.items()}
        speakers["train"] = [one for one in everyone if one not in self.held_out.values()]
        if not speakers["train"]:
            raise UserError(f"{self.dataset_name} has no speaker to train on besides {everyone}")
        self.print_note("; ".join(f"{split}: {', '.join(who)}" for split, who in speakers.items()))
        splits = {}
        for stream, (split, size) in enumerate(self.sizes.items()):
            own = [one for one in recordings if one.speaker in speakers[split]]
            splits[split] = draw_strings(own, size, f"{split}-", stream)
        return splits


def draw_strings(
    recordings: Sequence[Utterance], count: int, prefix: str = "", stream: int = 0
) -> list[Utterance]:
    """Draw strings of two to five digits of one speaker, with a recording of each digit."""
    rng = np.random.default_rng((_SEED, stream))
    speaker_of, text_of = attrgetter("speaker"), attrgetter("text")
    by_speaker = groupby(sorted(recordings, key=speaker_of), key=speaker_of)
    takes = {who: {word: list(group)
                   for word, group in groupby(sorted(own, key=text_of), key=text_of)}
             for who, own in by_speaker}  # fmt: skip
    strings = []
    for number in range(count):
        who = str(rng.choice(list(takes)))
        words = rng.choice(list(takes[who]), rng.integers(_MIN_DIGITS, _MAX_DIGITS + 1))
        digits = [takes[who][word][rng.integers(len(takes[who][word]))] for word in words]
        seconds = sum(one.seconds for one in digits) + GAP_SECONDS * (len(digits) - 1)
        path = tuple(file for one in digits for file in one.path)
        name = f"{prefix}{who}-{number:04d}"
        strings.append(Utterance(name, path, seconds, " ".join(words), who))
    return strings
