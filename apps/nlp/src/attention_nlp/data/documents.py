"""Documents for pre-training, read one at a time: of files, of the hub, of Python's docs."""

import hashlib
import unicodedata
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from experiment_kit.errors import UserError

from attention_nlp.data.docs import list_sentences
from attention_nlp.data.files import read_lines, read_table

_SENTENCES_PER_DOCUMENT = 16  # in Python's documentation


def list_text_files(folder: Path) -> list[Path]:
    """List the `.txt` and `.jsonl` files below a folder; UserError if there is none."""
    files = (path for path in folder.rglob("*") if path.suffix in (".txt", ".jsonl"))
    if found := sorted(filter(Path.is_file, files)):
        return found
    raise UserError(f"no .txt or .jsonl file in {folder}")


def hash_text_files(folder: Path) -> list[str]:
    """Return the name and the hash of each file, to identify their content."""
    found = []
    for path in list_text_files(folder):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        found.append(f"{path.relative_to(folder)} {digest}")
    return found


def read_text_files(folder: Path) -> Iterator[str]:
    """Read the documents of all text files below a folder, in the order of their names.

    Empty lines separate the documents of a text; a line of JSON holds a document under `text`.

    Raises UserError if there is no file, and for a line that is not UTF-8, not JSON or without a
    text.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp())
    >>> _ = (path / "a.txt").write_text("one\\ntwo\\n\\nthree")
    >>> _ = (path / "b.jsonl").write_text('{"text": "four"}')
    >>> list(read_text_files(path))
    ['one\\ntwo', 'three', 'four']
    """
    for path in list_text_files(folder):
        if path.suffix == ".txt":
            for is_blank, lines in groupby(read_lines(path), lambda line: not line.strip()):
                if not is_blank:
                    yield "\n".join(lines)
        else:
            for number, row in enumerate(read_table(path), 1):
                if not isinstance(row, dict) or "text" not in row:
                    raise UserError(f'{path}, row {number}: no JSON object with "text"')
                yield str(row["text"])


def read_python_docs() -> Iterator[str]:
    """Read the documentation that ships with this Python, in documents of 16 sentences."""
    sentences, size = list_sentences(), _SENTENCES_PER_DOCUMENT
    return (" ".join(sentences[i : i + size]) for i in range(0, len(sentences), size))


def stream_hub(name: str, revision: str | None = None) -> Iterator[str]:
    """Stream the documents under `text` of a data set on the hub.

    Raises UserError if the hub is not reachable.
    """
    from datasets import load_dataset  # here, since it takes seconds

    try:
        for row in load_dataset(name, split="train", streaming=True, revision=revision):
            yield row["text"]
    except Exception as error:  # the client raises errors of many kinds without a network
        raise UserError(
            f"the hub does not give texts of {name} ({type(error).__name__}): use local files"
            " (data: text_files)"
        ) from error


def strip_non_ascii(text: str) -> str:
    """Strip accents and all characters that an English keyboard does not have."""
    return unicodedata.normalize("NFD", text).encode("ascii", "ignore").decode()
