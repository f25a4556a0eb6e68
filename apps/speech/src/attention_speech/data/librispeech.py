"""LibriSpeech: read English books, in the layout of openslr.org.

https://www.openslr.org/12, https://doi.org/10.1109/ICASSP.2015.7178964
"""

from pathlib import Path
from typing import Any

from experiment_kit.data.local import locate
from experiment_kit.errors import UserError

from attention_speech.audio import Manifest, Transcript, Utterance, matched
from attention_speech.data.base import TOPS, SpeechData

_TRAIN = {
    "librispeech_100h": ("train-clean-100",),
    "librispeech_960h": ("train-clean-100", "train-clean-360", "train-other-500"),
}
_DEV = "dev-clean", "dev-other"
_FOLDERS = ("LibriSpeech", "librispeech", ".")


class LibriSpeech(SpeechData):
    """100 or 960 hours of read books; `dev` chooses the epoch, test-clean and test-other score.

    `dev` is dev-clean, as released, or dev-other, or both, as the paper says.

    Raises ValueError for another `dev`, and what `SpeechData` does.

    Source: https://www.openslr.org/12

    >>> LibriSpeech("librispeech_100h").tests
    ('test-clean', 'test-other')
    """

    known = tuple(_TRAIN)
    tests = ("test-clean", "test-other")

    def __init__(self, *args: Any, dev: tuple[str, ...] = _DEV[:1], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not dev or not set(dev) <= set(_DEV):
            raise ValueError(f"data.dev must be of {' and '.join(_DEV)}, got {list(dev)}")
        self.dev = tuple(dict.fromkeys(dev))

    @staticmethod
    def whereabouts(name: str) -> Path:
        """The folder of the splits; raises UserError where there is none."""
        return _locate(name, None, _DEV[:1])

    def split(self) -> dict[str, list[Utterance]]:
        """The official splits."""
        root, name = _locate(self.problem, self.data_dir, self.dev), self.problem
        parts: dict[str, list[Utterance]] = {}
        splits = {"train": _TRAIN[name], "val": self.dev} | {test: (test,) for test in self.tests}
        for part, folders in splits.items():
            parts[part] = []
            for folder in folders:
                found = read_split(folder, root / folder)
                parts[part] += found.utterances
                for note in found.notes:
                    self.say(f"{folder}: {note}")
        return parts


def _locate(name: str, data_dir: str | None, dev: tuple[str, ...]) -> Path:
    hint = f"`python -m attention_speech.download {name}` fetches it"
    first, *_ = _TRAIN[name]
    root = locate(data_dir, _FOLDERS, lambda place: (place / first).is_dir(), hint, TOPS)
    needed = (*_TRAIN[name], *dev, *LibriSpeech.tests)
    if absent := [split for split in needed if not (root / split).is_dir()]:
        raise UserError(f"{root} has no {', '.join(absent)} ({hint})")
    return root


def read_split(name: str, folder: Path) -> Manifest:
    """The utterances of a split, <speaker>/<chapter>/*.flac and *.trans.txt, at any depth.

    A line of a transcript is `<speaker>-<chapter>-<number> WORDS`. Raises UserError where none
    can be used, or where a transcript is no text.
    """
    audio = {path.stem: path for path in folder.rglob("*.flac")}
    transcripts: dict[str, Transcript] = {}
    for path in sorted(folder.rglob("*.trans.txt")):
        for line in lines(path):
            key, _, text = line.partition(" ")
            transcripts[key] = Transcript(text.strip().upper(), key.partition("-")[0])
    return matched(name, audio, transcripts)


def lines(path: Path) -> list[str]:
    """The lines of a file that are not blank.

    Raises UserError where it cannot be read, or is no text in UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 ({error.reason})") from error
    return [line.strip() for line in text.splitlines() if line.strip()]
