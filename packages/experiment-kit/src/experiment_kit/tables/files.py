"""Writing a file whole or not at all."""

import os
from pathlib import Path


def write_text(path: Path, text: str) -> Path:
    """Replace a file in one step: a reader sees the old text or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not `tempfile`: its files are private to the user, and a result is to be read by others.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
