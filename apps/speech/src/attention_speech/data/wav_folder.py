"""Own recordings: a csv file with a column of audio files and a column of their texts."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from experiment_kit.data.csv_files import read_csv_cells
from experiment_kit.data.datamodule import find_dataset
from experiment_kit.errors import UserError

from attention_speech.audio import Transcript, Utterance, build_manifest
from attention_speech.data.base import SUBFOLDERS, SpeechData

_SEED = 0  # draws the same splits for every run: the test set must not change


class WavFolder(SpeechData):
    """Recordings that a csv file names, relative to its folder, and their texts.

    A tenth of them is for validation and a tenth for testing, at least one each, by a shuffle that
    is the same for every run. Texts are compared as they are: write them in one case.

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
        """Return the csv file and the recordings that it names."""
        path = self.find_data(self.dataset_name, self.data_dir, self.index)
        return [path, *(path.parent / name for name in read_index(path, *self.columns))]

    def read_utterances(self) -> dict[str, list[Utterance]]:
        """Read the index, and split the recordings."""
        path = self.find_data(self.dataset_name, self.data_dir, self.index)
        texts = read_index(path, *self.columns)
        audio = {name: path.parent / name for name in texts}
        transcripts = {name: Transcript(text, "") for name, text in texts.items()}
        manifest = build_manifest(self.dataset_name, audio, transcripts)
        recordings = self.use_manifests({"": manifest})
        if len(recordings) < 3:
            raise UserError(f"{path} names {len(recordings)} recordings: three splits take three")
        order = np.random.default_rng(_SEED).permutation(len(recordings))
        count = max(1, len(recordings) // 10)
        chosen = {"test": order[:count], "val": order[count : 2 * count]}
        chosen["train"] = order[2 * count :]
        return {split: [recordings[i] for i in sorted(rows)] for split, rows in chosen.items()}


def read_index(path: Path, file_column: str, text_column: str) -> dict[str, str]:
    """Read the texts of the recordings by their files."""
    texts: dict[str, str] = {}
    for line, (file, text) in read_csv_cells(path, (file_column, text_column)):
        file = str(Path(file))  # ./a.wav is a.wav
        if file in texts or not (path.parent / file).is_file():
            problem = "is named twice" if file in texts else "does not exist"
            raise UserError(f"{path}, line {line}: {file} {problem}")
        texts[file] = text
    return texts
