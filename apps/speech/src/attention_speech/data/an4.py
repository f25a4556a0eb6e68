"""CMU's an4: spelled names, addresses and numbers, in the layout of its archives.

https://www.speech.cs.cmu.edu/databases/an4
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from experiment_kit.data.csv_files import read_text_lines
from experiment_kit.data.datamodule import find_dataset
from experiment_kit.data.download import Download
from experiment_kit.errors import UserError

from attention_speech.audio import Manifest, Transcript, Utterance, build_manifest
from attention_speech.data.base import SUBFOLDERS, SpeechData

_SEED = 0  # draws the same validation speakers for every run
# NeMo's copy: CMU sends its own without protection, and publishes no hash
_URL = "https://dldata-public.s3.us-east-2.amazonaws.com/an4_sphere.tar.gz"
DOWNLOADS = {"an4": (Download(_URL, "an4", "an4"),)}
_SUFFIXES = (".sph", ".wav", ".raw", ".flac")


class An4(SpeechData):
    """The official train and test splits; a tenth of the training speakers is for validation."""

    DATASETS = ("an4",)

    @classmethod
    def find_data(cls, dataset_name: str, data_dir: str | None = None) -> Path:
        """Return the folder that holds etc and wav."""
        file, hint = "etc/an4_train.transcription", "`allpass data an4` fetches it"
        return find_dataset(
            data_dir, ("an4", "."), lambda path: (path / file).is_file(), hint, SUBFOLDERS
        )

    def list_data_files(self) -> Sequence[Path]:
        """List the folders of the transcripts and of the audio."""
        root = self.find_data(self.dataset_name, self.data_dir)
        return [root / "etc", root / "wav"]

    def read_utterances(self) -> dict[str, list[Utterance]]:
        """Read the official splits, and hold out the validation speakers."""
        root = self.find_data(self.dataset_name, self.data_dir)
        train, test = (
            self.use_manifests({split: read_split(root, split)}) for split in ("train", "test")
        )
        speakers = sorted({one.speaker for one in train})
        count = max(1, round(self.val_fraction * len(speakers)))
        held_out = set(np.random.default_rng(_SEED).permutation(speakers)[:count].tolist())
        return {
            "train": [one for one in train if one.speaker not in held_out],
            "val": [one for one in train if one.speaker in held_out],
            "test": test,
        }


def read_split(root: Path, split: str) -> Manifest:
    """Read etc/an4_<split>.transcription, and the files that etc/an4_<split>.fileids lists.

    A line is `<s> WORDS </s> (name)`; the test split has no marks. The folder of a file is its
    speaker.
    """
    path = root / "etc" / f"an4_{split}.transcription"
    speakers, audio = {}, {}
    for line in filter(None, map(str.strip, read_text_lines(path.with_suffix(".fileids")))):
        file = Path(line)
        speakers[file.name] = file.parent.name
        candidates = ((root / "wav" / line).with_suffix(suffix) for suffix in _SUFFIXES)
        if found := next((path for path in candidates if path.is_file()), None):
            audio[file.name] = found
    transcripts = {}
    for number, line in enumerate(map(str.strip, read_text_lines(path)), start=1):
        match = re.fullmatch(r"(.*)\((\S+)\)", line)
        if not line:
            continue
        if not match:
            raise UserError(f"{path}, line {number}: no (name) at its end: {line[:60]!r}")
        words = [word for word in match[1].split() if not re.fullmatch(r"<.*>|\+\+.*\+\+", word)]
        name = match[2]
        transcripts[name] = Transcript(" ".join(words).upper(), speakers.get(name, ""))
    return build_manifest(f"an4_{split}", audio, transcripts)
