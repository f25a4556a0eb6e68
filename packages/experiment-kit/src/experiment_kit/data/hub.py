"""Files of a repository on the Hugging Face hub: from the local cache, else downloaded into it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiment_kit.errors import UserError


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
