"""Download data sets into DATA_DIR: `python -m attention_speech.download librispeech_100h fsdd`."""

import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from experiment_kit.data.archive import extract
from experiment_kit.data.download import fetch
from experiment_kit.errors import UserError
from experiment_kit.sentences import told

_OPENSLR = "https://www.openslr.org/resources/12"


class _Archive(NamedTuple):
    """Where an archive comes from, which of its folders is wanted, and where that goes."""

    url: str
    inside: str
    folder: str
    sha256: str | None = None


# Hashes as torchaudio.datasets.LIBRISPEECH has them; others are recorded by the first download
_SPLITS = {
    "dev-clean": "76f87d090650617fca0cac8f88b9416e0ebf80350acb97b343a85fa903728ab3",
    "dev-other": "12661c48e8c3fe1de2c1caa4c3e135193bfb1811584f11f569dd12645aa84365",
    "test-clean": "39fde525e59672dc6d1551919b1478f724438a95aa55f874b576be21967e6c23",
    "test-other": "d09c181bba5cf717b3dee7d4d592af11a3ee3a09e08ae025c5506f6ebe961c29",
    "train-clean-100": "d4ddd1d5a6ab303066f14971d768ee43278a5f2a0aa43dc716b0e64ecbbbf6e2",
    "train-clean-360": "146a56496217e96c14334a160df97fffedd6e0a04e66b9c5af0d40be3c792ecf",
    "train-other-500": "ddb22f27f96ec163645d53215559df6aa36515f26e01dd70798188350adcb6d2",
}


def _librispeech(split: str) -> _Archive:
    place = f"LibriSpeech/{split}"
    return _Archive(f"{_OPENSLR}/{split}.tar.gz", place, place, _SPLITS[split])


_SMALL = tuple(split for split in _SPLITS if split not in ("train-clean-360", "train-other-500"))
SOURCES: dict[str, tuple[_Archive, ...]] = {
    "librispeech_100h": tuple(_librispeech(split) for split in _SMALL),
    "librispeech_960h": tuple(_librispeech(split) for split in _SPLITS),
    "fsdd": (
        _Archive(
            "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/v1.0.10.zip",
            "free-spoken-digit-dataset-1.0.10",
            "fsdd",
        ),
    ),
    "an4": (
        _Archive("http://www.speech.cs.cmu.edu/databases/an4/an4_sphere.tar.gz", "an4", "an4"),
    ),
}


def main() -> None:
    """Fetch archives, check them, unpack them; what is there already is left alone."""
    with told():
        names = sys.argv[1:]
        if not names or set(names) - set(SOURCES):
            raise UserError(f"name some of {', '.join(SOURCES)}")
        root = os.environ.get("DATA_DIR")
        if not root:
            raise UserError("set DATA_DIR to the folder that the data is to go to")
        for name in names:
            for archive in SOURCES[name]:
                print(download(archive, Path(root)))


def download(archive: _Archive, root: Path) -> Path:
    """Fetch an archive and unpack it; its folder appears when it is whole.

    Raises UserError where the archive does not hold the folder, or what `fetch` raises.
    """
    folder = root / archive.folder
    if folder.is_dir():
        return folder
    name = archive.url.rpartition("/")[2]
    unpacked = extract(fetch(archive.url, root / name, archive.sha256), root / f".{name}.unpacked")
    if not (unpacked / archive.inside).is_dir():
        raise UserError(f"{root / name} has no folder {archive.inside}: it is another archive")
    folder.parent.mkdir(parents=True, exist_ok=True)
    (unpacked / archive.inside).rename(folder)
    shutil.rmtree(unpacked)  # readme files, which every split brings along
    return folder


if __name__ == "__main__":
    main()
