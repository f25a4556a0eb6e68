"""Sources of documents for pre-training, read one at a time: files, the hub, Python's docs."""

import hashlib
import json
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from experiment_kit.errors import UserError

from attention_nlp.data.docs import list_sentences
from attention_nlp.data.files import load_hub_rows, read_lines

_SENTENCES_PER_DOCUMENT = 16  # of Python's documentation


class DocumentSource(NamedTuple):
    """Functions that read the documents from the start, and that identify their content."""

    read_documents: Callable[[], Iterator[str]]
    describe_content: Callable[[], list[str]]


def folder_source(path: Path) -> DocumentSource:
    """Read all `.txt` and `.jsonl` files below a folder, in the order of their names.

    Empty lines separate the documents of a text; a line of JSON holds a document under `text`.

    Raises UserError if there is no file, and when reading, for a line that is not UTF-8, not JSON
    or without a text.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp())
    >>> _ = (path / "a.txt").write_text("one\\ntwo\\n\\nthree")
    >>> _ = (path / "b.jsonl").write_text('{"text": "four"}')
    >>> list(folder_source(path).read_documents())
    ['one\\ntwo', 'three', 'four']
    """
    files = sorted(p for p in path.rglob("*") if p.suffix in (".txt", ".jsonl") and p.is_file())
    if not files:
        raise UserError(f"no .txt or .jsonl file in {path}")

    def describe_content() -> list[str]:
        hashes = []
        for file in files:
            with file.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
            hashes.append(f"{file.relative_to(path)} {digest}")
        return hashes

    return DocumentSource(
        lambda: (text for file in files for text in _read_file(file)), describe_content
    )


def _read_file(file: Path) -> Iterator[str]:
    if file.suffix == ".txt":
        yield from _read_paragraphs(file)
        return
    for number, line in enumerate(read_lines(file), 1):
        if line.strip():
            try:
                yield str(json.loads(line)["text"])
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise UserError(f'{file}, line {number}: no JSON object with "text"') from error


def _read_paragraphs(file: Path) -> Iterator[str]:
    paragraph: list[str] = []
    for line in read_lines(file):
        if line.strip():
            paragraph.append(line)
        elif paragraph:
            yield "\n".join(paragraph)
            paragraph = []
    if paragraph:
        yield "\n".join(paragraph)


def python_docs_source() -> DocumentSource:
    """Read the documentation that ships with this Python, in documents of 16 sentences."""

    def read_documents() -> Iterator[str]:
        sentences = list_sentences()
        starts = range(0, len(sentences), _SENTENCES_PER_DOCUMENT)
        return (" ".join(sentences[i : i + _SENTENCES_PER_DOCUMENT]) for i in starts)

    return DocumentSource(read_documents, lambda: list(list_sentences()))


def hub_source(name: str, revision: str | None = None) -> DocumentSource:
    """Stream the documents under `text` of a data set on the hub, identified by its revision.

    Raises UserError when reading if `datasets` is not installed or the hub is not reachable.
    """

    def read_documents() -> Iterator[str]:
        remedy = "use local files (data: text_files)"
        options = {"streaming": True, "revision": revision}
        for row in load_hub_rows(name, None, "train", remedy, **options):
            if "text" not in row:
                raise UserError(f"{name} has no column text, but {', '.join(row)}")
            yield row["text"]

    return DocumentSource(read_documents, lambda: [name, revision or ""])


def strip_non_ascii(text: str) -> str:
    """Strip accents and all characters that an English keyboard does not have."""
    return unicodedata.normalize("NFD", text).encode("ascii", "ignore").decode()
