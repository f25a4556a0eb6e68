"""Files of people's folders, without those that systems add."""

import re
from pathlib import Path

# copies by notebooks, by archives of a Mac, and by network drives; files of drives and managers
_HIDDEN = re.compile(
    r"(^|/)(\.|__MACOSX|@eaDir|\$RECYCLE|System Volume Information|lost\+found|"
    r"((eh)?thumbs\.db|desktop\.ini)$)",
    re.IGNORECASE,
)


def is_hidden(path: str) -> bool:
    """Return whether a name, or a folder of a relative path, was added by a system.

    >>> is_hidden("cat/.ipynb_checkpoints/1.jpg"), is_hidden("cat/Thumbs.db"), is_hidden("a.b/c.d")
    (True, True, False)
    """
    return _HIDDEN.search(path) is not None


def list_visible_files(folder: Path, *suffixes: str) -> list[Path]:
    """List the files below a folder whose names end in a suffix, in the order of names."""
    found = (path for path in sorted(folder.rglob("*")) if path.name.lower().endswith(suffixes))
    visible = (path for path in found if not is_hidden(str(path.relative_to(folder))))
    return [path for path in visible if path.is_file()]
