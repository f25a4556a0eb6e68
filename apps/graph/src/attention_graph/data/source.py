"""What pre-processing begins with: molecules as they lie, and what decides what becomes of them."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from torch_geometric.data import Data

from attention_graph.encodings import Fidelity

VERSION = 1  # of what is in a part; another one is another folder


class Record(NamedTuple):
    """A molecule as it lies: its row in the source, what it is, and about how many atoms."""

    row: int
    content: Any
    size: int


class Source(NamedTuple):
    """Molecules, and what makes a graph of one; `options` say what files and `make` do not.

    `records` reads them in order, and `make` is called in other processes.
    """

    name: str
    files: tuple[Path, ...]
    records: Callable[[], Iterator[Record]]
    make: Callable[[Any], Data]
    options: Mapping[str, Any] = {}
    total: int | None = None


class Options(NamedTuple):
    """How graphs are encoded, and which are too large."""

    fidelity: Fidelity = "right"
    max_nodes: int = 512


def key(source: Source, options: Options, chunk: Sequence[int] = ()) -> str:
    """Sixteen hex digits over all that decides what is in the cache: content, not names or dates.

    `chunk` is the most that a part holds: a build that goes on must cut as it began.

    >>> a = Source("a", (), lambda: iter(()), Data, {"seed": 0})
    >>> key(a, Options()) == key(a._replace(options={"seed": 1}), Options())
    False
    """
    digest = hashlib.sha256()
    for path in source.files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    make = f"{source.make.__module__}.{source.make.__qualname__}"
    material = [dict(source.options), make, options._asdict(), chunk, VERSION, version("rdkit")]
    digest.update(json.dumps(material, sort_keys=True).encode())
    return digest.hexdigest()[:16]
