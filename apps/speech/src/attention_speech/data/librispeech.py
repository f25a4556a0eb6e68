"""LibriSpeech: read English books, in the layout of openslr.org.

https://www.openslr.org/12, https://doi.org/10.1109/ICASSP.2015.7178964
"""

from pathlib import Path
from typing import Any

from experiment_kit.data.local import locate
from experiment_kit.errors import UserError

from attention_speech.audio import Manifest, Transcript, Utterance, build_manifest
from attention_speech.data.base import SUBFOLDERS, SpeechData

_TRAIN = {
    "librispeech_100h": ("train-clean-100",),
    "librispeech_960h": ("train-clean-100", "train-clean-360", "train-other-500"),
}
_DEV = "dev-clean", "dev-other"
_FOLDERS = ("LibriSpeech", "librispeech", ".")


class LibriSpeech(SpeechData):
    """100 or 960 hours of read books; `dev` selects the epoch, test-clean and test-other score it.

    `dev` is dev-clean in the released code, and dev-clean with dev-other in the paper's text.

    Raises ValueError for another `dev`.

    Source: https://www.openslr.org/12
    """

    known = tuple(_TRAIN)
    test_splits = ("test-clean", "test-other")

    def __init__(self, *args: Any, dev: tuple[str, ...] = _DEV[:1], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not dev or not set(dev) <= set(_DEV):
            raise ValueError(f"data.dev must be of {' and '.join(_DEV)}, got {list(dev)}")
        self.dev = tuple(dict.fromkeys(dev))

    @staticmethod
    def whereabouts(name: str) -> Path:
        """Return the folder that holds the splits; raises UserError where one is missing."""
        return _find_folders(name, None, _DEV[:1])

    def load_splits(self) -> dict[str, list[Utterance]]:
        """Read the official splits."""
        root = _find_folders(self.problem, self.data_dir, self.dev)
        folders = {"train": _TRAIN[self.problem], "val": self.dev}
        folders |= {test: (test,) for test in self.test_splits}
        return {
            split: self.use_manifests({name: read_folder(name, root / name) for name in names})
            for split, names in folders.items()
        }


def _find_folders(name: str, data_dir: str | None, dev: tuple[str, ...]) -> Path:
    hint = f"`python -m attention_speech.download {name}` fetches it"
    first, *_ = _TRAIN[name]
    root = locate(data_dir, _FOLDERS, lambda folder: (folder / first).is_dir(), hint, SUBFOLDERS)
    needed = (*_TRAIN[name], *dev, *LibriSpeech.test_splits)
    if absent := [folder for folder in needed if not (root / folder).is_dir()]:
        raise UserError(f"{root} has no {', '.join(absent)} ({hint})")
    return root


def read_folder(name: str, folder: Path) -> Manifest:
    """Read the utterances of <speaker>/<chapter>/*.flac and *.trans.txt, at any depth.

    A line of a transcript is `<speaker>-<chapter>-<number> WORDS`. Raises UserError where no
    utterance can be used, or where a transcript is not text.
    """
    audio = {path.stem: path for path in folder.rglob("*.flac")}
    transcripts: dict[str, Transcript] = {}
    for path in sorted(folder.rglob("*.trans.txt")):
        for line in read_lines(path):
            key, _, text = line.partition(" ")
            transcripts[key] = Transcript(text.strip().upper(), key.partition("-")[0])
    return build_manifest(name, audio, transcripts)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file that are not blank.

    Raises UserError for a file that cannot be read, or that is not text in UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 ({error.reason})") from error
    return [line.strip() for line in text.splitlines() if line.strip()]
