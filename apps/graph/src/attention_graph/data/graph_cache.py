"""Encoding of molecules, done once: a source becomes a folder of chunks on disk."""

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from experiment_kit.data.cache_files import (
    MANIFEST,
    find_damaged,
    warn_damaged,
    write_manifest,
)
from experiment_kit.errors import UserError
from experiment_kit.run import hold_lock, write_atomically
from rich.console import Console
from rich.progress import Progress
from torch_geometric.data import Data

from attention_graph.data.graph_store import encode_graphs, format_skipped, load_chunk
from attention_graph.encodings import Variant

CACHE = Path("runs/data/graph")
VERSION = 1  # a chunk's content; another version is another folder
_MAX_ROWS, _MAX_PAIRS = 2048, 1 << 22  # in a chunk; a pair of atoms takes about 16 bytes
_WAITING = 2  # chunks that wait for a worker


class Record(NamedTuple):
    """A molecule as it is read: its row in the source, its content, and its approximate size."""

    row: int
    content: Any
    size: int


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


def hash_source(source: MoleculeSource, options: EncodingOptions, limits: Sequence[int]) -> str:
    """Hash all that the graphs depend on to 16 hex digits: file contents, not names or dates.

    `limits` are those of a chunk, so that a resumed build cuts the same chunks.
    """
    digest = hashlib.sha256()
    for path in source.files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    featurize = f"{source.featurize.__module__}.{source.featurize.__qualname__}"
    versions = VERSION, version("rdkit")
    content = [dict(source.options), featurize, options._asdict(), limits, *versions]
    digest.update(json.dumps(content, sort_keys=True).encode())
    return digest.hexdigest()[:16]


def encode_source(source: MoleculeSource, options: EncodingOptions, workers: int = 0) -> Path:
    """Return the folder with the encoded graphs of a source, made now if it is not there.

    Chunks appear one by one, each of them whole: a later call continues one that was killed, and
    makes files anew that differ from the manifest. Two processes that need the same folder share
    it. Raises UserError if no graph is left.
    """
    name = f"{source.name}-{hash_source(source, options, (_MAX_ROWS, _MAX_PAIRS))}"
    folder = CACHE / name
    folder.mkdir(parents=True, exist_ok=True)
    with hold_lock(CACHE / f"{name}.lock"):
        if damaged := find_damaged(folder):
            if any((folder / name).exists() for name in (MANIFEST, "summary.json")):
                warn_damaged(folder, damaged)
            for name in damaged:
                (folder / name).unlink(missing_ok=True)
            _build_chunks(folder, source, options, workers)
            write_manifest(folder)
    return folder


def _build_chunks(
    folder: Path, source: MoleculeSource, options: EncodingOptions, workers: int
) -> None:
    for leftover in folder.glob(".*.part"):  # left by a process that was killed
        leftover.unlink()
    names: list[str] = []
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"{source.name}: graphs", total=source.total)

        def list_missing() -> Iterator[tuple[Path, list[Record]]]:
            for number, chunk in enumerate(_cut_chunks(source.read_records())):
                path = folder / f"part-{number:06d}.pt"
                names.append(path.name)
                if path.exists():
                    progress.update(bar, advance=len(chunk))
                else:
                    yield path, chunk

        for rows in _write_chunks(list_missing(), source.featurize, options, workers):
            progress.update(bar, advance=rows)
    _write_summary(folder, source, names)


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
    jobs: Iterable[tuple[Path, list[Record]]],
    featurize: Callable[[Any], Data],
    options: EncodingOptions,
    workers: int,
) -> Iterator[int]:
    """Write the chunks, few of them in memory at a time, and yield the number of rows of each."""
    if not workers:
        yield from (_write_chunk(path, chunk, featurize, options) for path, chunk in jobs)
        return
    # a fork of this process, which has torch's threads, may hang: fork one that only imported them
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as pool:
        waiting: set[Future[int]] = set()
        try:
            for path, chunk in jobs:
                waiting.add(pool.submit(_write_chunk, path, chunk, featurize, options))
                if len(waiting) >= workers + _WAITING:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            yield from (future.result() for future in waiting)
        except BrokenProcessPool as error:
            text = "a worker that encodes graphs was killed, perhaps for lack of memory"
            raise UserError(f"{text}: run again with fewer data.workers to continue") from error
        finally:
            pool.shutdown(cancel_futures=True)


def _write_chunk(
    path: Path, chunk: list[Record], featurize: Callable[[Any], Data], options: EncodingOptions
) -> int:
    rows = [(record.row, record.content) for record in chunk]
    buffer = io.BytesIO()
    torch.save(encode_graphs(rows, featurize, *options), buffer)
    write_atomically(path, buffer.getvalue())
    return len(chunk)


def _write_summary(folder: Path, source: MoleculeSource, names: list[str]) -> None:
    chunks, skipped = [], dict[str, Any]()
    rows = 0
    for name in names:
        packed = load_chunk(folder / name)
        chunks.append({"file": name, "graphs": len(packed["ends"].get("row", ()))})
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
    write_atomically(folder / "summary.json", json.dumps(summary, indent=1) + "\n")
