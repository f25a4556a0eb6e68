"""Encoding of molecules, done once: a source becomes a folder of chunks on disk."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from importlib.metadata import version
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from experiment_kit.data.folders import make_cache
from experiment_kit.errors import UserError
from rich.console import Console
from rich.progress import Progress
from torch_geometric.data import Data

from attention_graph.data.graph_store import encode_graphs, format_skipped, load_chunk
from attention_graph.encodings.paths import Variant

CACHE = Path("runs/data/graph")
VERSION = 1  # a chunk's content; another version is another folder
_MAX_ROWS, _MAX_PAIRS = 2048, 1 << 22  # in a chunk; a pair of atoms takes about 16 bytes


class Record(NamedTuple):
    """A molecule as it is read: its row in the source, its content, and its approximate size."""

    row: int
    content: Any
    size: int


_Job = tuple[Path, list[Record]]  # a file and what it holds


class MoleculeSource(NamedTuple):
    """Molecules and their features; `options` is all else that the graphs depend on.

    `read_records` yields them in order; other processes call `featurize`.
    """

    name: str
    files: tuple[Path, ...]
    read_records: Callable[[], Iterator[Record]]
    featurize: Callable[[Any], Data]
    options: Mapping[str, Any] = {}
    total: int | None = None


class EncodingOptions(NamedTuple):
    """The variant of the encoding, and the size above which graphs are skipped."""

    variant: Variant = "corrected"
    max_nodes: int = 512


def hash_source(source: MoleculeSource, options: EncodingOptions) -> str:
    """Hash all that the graphs depend on to 16 hex digits: file contents, not names or dates."""
    digest = hashlib.sha256()
    for path in source.files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    featurize = f"{source.featurize.__module__}.{source.featurize.__qualname__}"
    versions = VERSION, version("rdkit")
    limits = _MAX_ROWS, _MAX_PAIRS
    content = [dict(source.options), featurize, options._asdict(), limits, *versions]
    digest.update(json.dumps(content, sort_keys=True).encode())
    return digest.hexdigest()[:16]


def encode_source(source: MoleculeSource, options: EncodingOptions, workers: int = 0) -> Path:
    """Return the folder with the encoded graphs of a source, made now if it is not there."""
    folder = CACHE / f"{source.name}-{hash_source(source, options)}"
    return make_cache(folder, lambda new: _write_graphs(new, source, options, workers))


def _write_graphs(
    folder: Path, source: MoleculeSource, options: EncodingOptions, workers: int
) -> None:
    chunks = enumerate(_cut_chunks(source.read_records()))
    jobs = ((folder / f"part-{number:06d}.pt", chunk) for number, chunk in chunks)
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"{source.name}: graphs", total=source.total)
        for rows in _write_chunks(jobs, source.featurize, options, workers):
            progress.update(bar, advance=rows)
    _write_summary(folder, source)


def _cut_chunks(records: Iterator[Record]) -> Iterator[list[Record]]:
    """Cut records into chunks, bounded in rows and in pairs of atoms, which decide the memory."""
    chunk: list[Record] = []
    pairs = 0
    for record in records:
        if chunk and (len(chunk) == _MAX_ROWS or pairs + record.size**2 > _MAX_PAIRS):
            yield chunk
            chunk, pairs = [], 0
        chunk.append(record)
        pairs += record.size**2
    if chunk:
        yield chunk


def _write_chunks(
    jobs: Iterator[_Job], featurize: Callable[[Any], Data], options: EncodingOptions, workers: int
) -> Iterator[int]:
    """Write the chunks, few of them in memory at a time, and yield the number of rows of each."""
    write = partial(_write_chunk, featurize, options)
    if not workers:
        yield from map(write, jobs)
        return
    # a fork of this process, which has torch's threads, may hang: fork one that only imported them
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as pool:
        try:
            while block := list(islice(jobs, 4 * workers)):
                yield from pool.map(write, block)
        except BrokenProcessPool as error:
            text = "a worker that encodes graphs was killed, perhaps for lack of memory"
            raise UserError(f"{text}: run again with fewer data.workers") from error


def _write_chunk(featurize: Callable[[Any], Data], options: EncodingOptions, job: _Job) -> int:
    path, chunk = job
    rows = [(record.row, record.content) for record in chunk]
    torch.save(encode_graphs(rows, featurize, *options), path)
    return len(chunk)


def _write_summary(folder: Path, source: MoleculeSource) -> None:
    chunks, skipped = [], dict[str, Any]()
    rows = 0
    for path in sorted(folder.glob("*.pt")):
        packed = load_chunk(path)
        chunks.append({"file": path.name, "graphs": len(packed["ends"].get("row", ()))})
        rows += packed["rows"]
        for row, reason in packed["skipped"]:
            entry = skipped.setdefault(reason, {"count": 0, "first": []})
            entry["count"] += 1
            entry["first"] += [row] if len(entry["first"]) < 3 else []
    summary = {"name": source.name, "rows": rows, "skipped": skipped, "parts": chunks}
    if not any(chunk["graphs"] for chunk in chunks):
        where = f" in {source.files[0]}" if source.files else ""
        reasons = f": {format_skipped(skipped)}" if skipped else ""
        raise UserError(f"{source.name} has no molecule that can be used{where}{reasons}")
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
