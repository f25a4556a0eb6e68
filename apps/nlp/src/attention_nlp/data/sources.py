"""Where the documents of pre-training come from, one at a time: files, a hub, or Python itself."""

import hashlib
import json
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from experiment_kit.errors import UserError

from attention_nlp.data.docs import sentences
from attention_nlp.data.files import texts

_TOGETHER = 16  # sentences of Python's documentation that make a document


class Source(NamedTuple):
    """Documents, read from the start at each call, and what says which ones they are."""

    documents: Callable[[], Iterator[str]]
    identity: Callable[[], list[str]]


def folder(path: Path) -> Source:
    """The documents of all `.txt` and `.jsonl` files below a folder, in the order of their names.

    A text is cut at its empty lines; a line of JSON is a document under the key `text`.

    Raises UserError where there are none, and when reading, for a line that is not UTF-8, no JSON
    or without a text.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp())
    >>> _ = (path / "a.txt").write_text("one\\ntwo\\n\\nthree")
    >>> _ = (path / "b.jsonl").write_text('{"text": "four"}')
    >>> list(folder(path).documents())
    ['one\\ntwo', 'three', 'four']
    """
    files = sorted(p for p in path.rglob("*") if p.suffix in (".txt", ".jsonl") and p.is_file())
    if not files:
        raise UserError(f"no .txt or .jsonl file in {path}")
    return Source(
        lambda: (text for file in files for text in _documents(file)),
        lambda: [f"{file.relative_to(path)} {_digest(file)}" for file in files],
    )


def _documents(file: Path) -> Iterator[str]:
    if file.suffix == ".txt":
        yield from _paragraphs(file)
        return
    for number, line in enumerate(texts(file), 1):
        if line.strip():
            try:
                yield str(json.loads(line)["text"])
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise UserError(f'{file}, line {number}: no JSON object with "text"') from error


def _paragraphs(file: Path) -> Iterator[str]:
    lines: list[str] = []
    for line in texts(file):
        if line.strip():
            lines.append(line)
        elif lines:
            yield "\n".join(lines)
            lines = []
    if lines:
        yield "\n".join(lines)


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def python_docs() -> Source:
    """The documentation that ships with this Python, in documents of 16 sentences.

    >>> callable(python_docs().documents)
    True
    """

    def documents() -> Iterator[str]:
        found = sentences()
        starts = range(0, len(found), _TOGETHER)
        return (" ".join(found[start : start + _TOGETHER]) for start in starts)

    return Source(documents, lambda: list(sentences()))


def hub(name: str, revision: str | None = None) -> Source:
    """The documents under `text` of a data set on the hub, streamed.

    What it holds is known by its name and revision alone.

    Raises UserError where `datasets` is not installed, and when reading, where the hub cannot be
    reached.
    """

    def documents() -> Iterator[str]:
        try:
            from datasets import load_dataset
        except ImportError as error:
            raise UserError(
                f"no `datasets` to stream {name}: pip install 'attention-nlp[hub]', or take local "
                "files (data: text_files)"
            ) from error
        try:
            for row in load_dataset(name, split="train", streaming=True, revision=revision):
                yield row["text"]
        except Exception as error:  # whatever the client raises without a network
            raise UserError(
                f"the hub could not stream {name} ({type(error).__name__}): take local files "
                "(data: text_files)"
            ) from error

    return Source(documents, lambda: [name, revision or ""])


def ascii_only(text: str) -> str:
    """A text without accents, and without what an English keyboard does not have.

    >>> ascii_only("Zoë’s café")
    'Zoes cafe'
    """
    return unicodedata.normalize("NFD", text).encode("ascii", "ignore").decode()
