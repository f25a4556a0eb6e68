"""Own recordings: a csv file with a column of audio files and a column of their texts."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from experiment_kit.data.csv_files import find_split_files, read_csv_cells, read_csv_table
from experiment_kit.data.datamodule import find_dataset
from experiment_kit.errors import UserError
from experiment_kit.run_files import warn_once

from attention_speech.audio import Transcript, Utterance, build_manifest
from attention_speech.data.base import SUBFOLDERS, SpeechData

_PART = re.compile(r"(?i)(\w+_)?(start|end|stop|begin|o(n|ff)set)([-_ ]?(time|m?s|sec\w*))?|t[01]")
_SEED = 0  # draws the same splits for every run: the test set must not change


class WavFolder(SpeechData):
    """Recordings that a csv file names, relative to its folder, and their texts.

    A `test.csv` and a `dev.csv` or `valid.csv` beside a `train.csv` are its splits. Else a tenth is
    for validation and a tenth for testing, at least one each, by a shuffle that is the same for
    every run. Texts are compared as they are: write them in one case.

    Args:
        index: Name of the csv file in DATA_DIR.
        file_column: Name of the column of recordings.
        text_column: Name of the column of texts.
    """

    DATASETS = ("wav_folder",)

    def __init__(
        self,
        dataset_name: str = "wav_folder",
        data_dir: str | None = None,
        *,
        index: str = "recordings/index.csv",
        file_column: str = "file",
        text_column: str = "text",
        **kwargs: object,
    ) -> None:
        super().__init__(dataset_name, data_dir, **kwargs)  # type: ignore[arg-type]
        self.index, self.columns = index, (file_column, text_column)

    @classmethod
    def find_data(
        cls, dataset_name: str, data_dir: str | None = None, index: str = "recordings/index.csv"
    ) -> Path:
        """Find the csv file; raises UserError where there is none."""
        return find_dataset(data_dir, [index], Path.is_file, "data.index names it", SUBFOLDERS)

    def list_data_files(self) -> Sequence[Path]:
        """Return the csv files and the recordings that they name."""
        first = self.find_data(self.dataset_name, self.data_dir, self.index)
        paths = find_split_files(first, self.columns).values()
        names = (path.parent / name for path in paths for name in read_index(path, *self.columns))
        return [*paths, *names]

    def read_utterances(self) -> dict[str, list[Utterance]]:
        """Read the indices, and split the recordings of the first where no other does."""
        splits, seen = dict[str, list[Utterance]](), set[str]()
        first = self.find_data(self.dataset_name, self.data_dir, self.index)
        for split, path in find_split_files(first, self.columns).items():
            texts = read_index(path, *self.columns)
            audio = {name: path.parent / name for name in texts}
            places = {os.path.abspath(file) for file in audio.values()}
            if both := places & seen:
                raise UserError(f"{path} names recordings of another split, as {min(both)}")
            seen |= places
            transcripts = {name: Transcript(text, "") for name, text in texts.items()}
            manifest = build_manifest(self.dataset_name, audio, transcripts)
            splits[split] = self.use_manifests({split * (split != "train"): manifest})
        recordings = splits.pop("train")
        others = [split for split in ("test", "val") if split not in splits]
        if len(recordings) <= len(others):
            raise UserError(f"{first} names {len(recordings)} recordings: three splits take three")
        order = np.random.default_rng(_SEED).permutation(len(recordings))
        count = max(1, len(recordings) // 10)
        parts = np.split(order, [count * number for number in range(1, len(others) + 1)])
        chosen = zip((*others, "train"), parts, strict=True)
        return splits | {split: [recordings[i] for i in sorted(rows)] for split, rows in chosen}


def read_index(path: Path, file_column: str, text_column: str) -> dict[str, str]:
    """Read the texts of the recordings by their files."""
    texts, places = dict[str, str](), set[str]()
    _, names = next(read_csv_table(path))
    if parts := ", ".join(filter(_PART.fullmatch, names)):
        warn_once(f"{path} has {parts}, which is not read: recordings are read whole")
    for line, (file, text) in read_csv_cells(path, (file_column, text_column)):
        file, place = str(Path(file)), os.path.abspath(path.parent / file)  # ./a.wav is a.wav
        if place in places or not (path.parent / file).is_file():
            problem = "is named twice: cut it into files" if place in places else "does not exist"
            raise UserError(f"{path}, line {line}: {file} {problem}")
        places.add(place)
        texts[file] = text
    return texts
