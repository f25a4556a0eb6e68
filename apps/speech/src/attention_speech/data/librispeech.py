"""LibriSpeech: read English books, in the layout of openslr.org.

https://www.openslr.org/12, https://doi.org/10.1109/ICASSP.2015.7178964
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiment_kit.data.csv_files import read_text_lines
from experiment_kit.data.datamodule import find_dataset
from experiment_kit.data.download import Download
from experiment_kit.data.folders import list_visible_files
from experiment_kit.errors import UserError

from attention_speech.audio import Manifest, Transcript, Utterance, build_manifest
from attention_speech.data.base import SUBFOLDERS, SpeechData

_TRAIN = {
    "librispeech_100h": ("train-clean-100",),
    "librispeech_960h": ("train-clean-100", "train-clean-360", "train-other-500"),
}
_DEV = "dev-clean", "dev-other"
_TEST = "test-clean", "test-other"
_URL = "https://www.openslr.org/resources/12"
# sha256 as in torchaudio.datasets.LIBRISPEECH
_ARCHIVES = {
    "dev-clean": "76f87d090650617fca0cac8f88b9416e0ebf80350acb97b343a85fa903728ab3",
    "dev-other": "12661c48e8c3fe1de2c1caa4c3e135193bfb1811584f11f569dd12645aa84365",
    "test-clean": "39fde525e59672dc6d1551919b1478f724438a95aa55f874b576be21967e6c23",
    "test-other": "d09c181bba5cf717b3dee7d4d592af11a3ee3a09e08ae025c5506f6ebe961c29",
    "train-clean-100": "d4ddd1d5a6ab303066f14971d768ee43278a5f2a0aa43dc716b0e64ecbbbf6e2",
    "train-clean-360": "146a56496217e96c14334a160df97fffedd6e0a04e66b9c5af0d40be3c792ecf",
    "train-other-500": "ddb22f27f96ec163645d53215559df6aa36515f26e01dd70798188350adcb6d2",
}
DOWNLOADS = {
    dataset_name: tuple(
        Download(f"{_URL}/{name}.tar.gz", f"LibriSpeech/{name}", f"LibriSpeech/{name}", sha256)
        for name, sha256 in _ARCHIVES.items()
        if name in (*_DEV, *_TEST, *train)
    )
    for dataset_name, train in _TRAIN.items()
} | {
    # texts for a language model; sha256 as in huggingface/datasets, librispeech_lm
    "librispeech_lm": (
        Download(
            "https://www.openslr.org/resources/11/librispeech-lm-norm.txt.gz",
            "librispeech-lm-norm.txt.gz",
            sha256="927d47656638c2ca93566640e56bcbeb2aa4ca237b8490fe1eff7d6e610a53c7",
        ),
    )
}


class LibriSpeech(SpeechData):
    """100 or 960 hours of read books; the two test splits are scored.

    Args:
        dev: Folders that select the epoch: dev-clean in the released code, and dev-clean with
            dev-other in the paper's text.
    """

    DATASETS = tuple(_TRAIN)
    test_splits = _TEST

    def __init__(self, *args: Any, dev: tuple[str, ...] = _DEV[:1], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not dev or not set(dev) <= set(_DEV):
            raise ValueError(f"data.dev must be of {' and '.join(_DEV)}, got {list(dev)}")
        self.dev = tuple(dict.fromkeys(dev))

    @classmethod
    def find_data(
        cls, dataset_name: str, data_dir: str | None = None, dev: tuple[str, ...] = _DEV[:1]
    ) -> Path:
        """Return the folder that holds the splits; raises UserError where one is missing."""
        hint = f"`allpass data {dataset_name}` fetches it"
        first, *_ = train = _TRAIN[dataset_name]
        names = ("LibriSpeech", "librispeech", ".")
        root = find_dataset(data_dir, names, lambda path: (path / first).is_dir(), hint, SUBFOLDERS)
        if absent := [name for name in (*train, *dev, *_TEST) if not (root / name).is_dir()]:
            raise UserError(f"{root} has no {', '.join(absent)} ({hint})")
        return root

    def list_data_files(self) -> Sequence[Path]:
        """List the folders of the splits in use."""
        root = self.find_data(self.dataset_name, self.data_dir, self.dev)
        return [root / name for name in (*_TRAIN[self.dataset_name], *self.dev, *_TEST)]

    def read_utterances(self) -> dict[str, list[Utterance]]:
        """Read the official splits."""
        root = self.find_data(self.dataset_name, self.data_dir, self.dev)
        folders = {"train": _TRAIN[self.dataset_name], "val": self.dev}
        folders |= {test: (test,) for test in self.test_splits}
        return {
            split: self.use_manifests({name: read_folder(name, root / name) for name in names})
            for split, names in folders.items()
        }


def read_folder(name: str, folder: Path) -> Manifest:
    """Read the utterances of <speaker>/<chapter>/*.flac and *.trans.txt, at any depth."""
    audio: dict[str, Path] = {}
    for path in list_visible_files(folder, ".flac"):
        if (first := audio.setdefault(path.stem, path)) != path:
            raise UserError(f"{first} and {path} have one name: begin it with speaker and chapter")
    transcripts: dict[str, Transcript] = {}
    for path in list_visible_files(folder, ".trans.txt"):
        for line in filter(None, map(str.strip, read_text_lines(path))):
            key, _, text = line.partition(" ")
            words = Transcript(text.strip().upper(), key.partition("-")[0])
            if transcripts.setdefault(key, words) != words:
                raise UserError(f"{path}: {key} has other words in another file")
    return build_manifest(name, audio, transcripts)
