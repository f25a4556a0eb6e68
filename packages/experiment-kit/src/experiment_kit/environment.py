"""The environment of a run: versions, commit and machine, for the record."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "lightning", "attention-core", "experiment-kit")
_MORE_PACKAGES = ("numpy", "timm", "transformers", "speechbrain", "torch-geometric")


@cache
def describe_code() -> dict[str, Any]:
    """Return versions and commit of the code; new published results do not make it modified."""
    code = ("--", ":(top)", ":(top,exclude)docs/results")
    return {
        "python": platform.python_version(),
        "versions": _find_versions(PACKAGES),
        "commit": _ask_git("rev-parse", "HEAD"),
        "modified": bool(_ask_git("status", "--porcelain", "--untracked-files=no", *code)),
    }


def describe_environment() -> dict[str, Any]:
    """Return versions, commit and machine, for the record."""
    import torch  # here, since it takes a second, and `--version` does without

    code = describe_code()
    return {
        **code,
        "versions": {**code["versions"], **_find_versions(_MORE_PACKAGES)},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "command": sys.argv,
    }


def search_working_directory_last() -> None:
    """Import installed modules before those beside the user, which `python -m` puts first."""
    here = os.getcwd()
    sys.path[:] = [*(path for path in sys.path if path not in ("", here)), here]


def expand_home(arguments: Iterable[str]) -> list[str]:
    """Replace ~ after = or :, as in `--folder=~/runs`, which a shell does not expand."""
    return [re.sub("(?<=[=:])~(?=/)", str(Path.home()), argument) for argument in arguments]


def split_list(value: Sequence[str] | str) -> list[str]:
    """Split a,b at its commas, but not an existing PATH or hf:PATH with a comma in its name."""
    if not isinstance(value, str):
        return [*value]
    is_path = os.path.exists(value) or os.path.exists(value.partition(":")[2])
    return [value] if is_path else [*filter(None, value.split(","))]


def describe_version(package: str) -> str:
    """Return the versions of an imported package and of the packages that it uses."""
    found = {package: getattr(sys.modules[package], "__version__", "?"), **_find_versions(PACKAGES)}
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _find_versions(names: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _ask_git(*arguments: str) -> str | None:
    here = Path(__file__).parent
    try:
        done = subprocess.run(["git", "-C", here, *arguments], capture_output=True, text=True)
    except OSError:  # git is not installed
        return None
    return done.stdout.strip() if done.returncode == 0 else None
