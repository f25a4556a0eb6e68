"""What a run ran on: versions, commit, machine."""

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

_PACKAGES = (
    *("torch", "lightning", "attention-core", "experiment-kit", "numpy", "timm", "aeon"),
    *("transformers", "speechbrain", "torch-geometric"),
)


def environment() -> dict[str, Any]:
    """Versions, commit and machine, for the record.

    >>> "torch" in environment()["versions"]
    True
    """
    return {
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
        "commit": _git("rev-parse", "HEAD"),
        "modified": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "command": sys.argv,
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    here = Path(__file__).parent
    try:
        done = subprocess.run(["git", "-C", here, *arguments], capture_output=True, text=True)
    except OSError:  # no git on this machine
        return None
    return done.stdout.strip() if done.returncode == 0 else None
