"""Pre-processing that is done once: a source of molecules becomes parts on disk, in chunks."""

import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from experiment_kit.errors import UserError
from experiment_kit.runs import write_atomically
from filelock import FileLock
from rich.console import Console
from rich.progress import Progress
from torch_geometric.data import Data

from attention_graph.data.packing import Packed, encode, graphs_in
from attention_graph.data.source import Options, Record, Source, key

CACHE = Path("runs/data/graph")
_ROWS, _PAIRS = 2048, 1 << 22  # of a chunk, at most; a pair of atoms takes about 16 bytes
_AHEAD = 2  # chunks that wait for a worker


def prepare(source: Source, options: Options, workers: int = 0) -> Path:
    """The folder of a source's parts, made where they are not there yet.

    Parts appear one by one, each of them whole: a call that was killed is continued. Two
    processes that need the same folder share one. Raises UserError where no graph is left.
    """
    folder = CACHE / f"{source.name}-{key(source, options, (_ROWS, _PAIRS))}"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not _is_whole(folder):
            _build(folder, source, options, workers)
    return folder


def _is_whole(folder: Path) -> bool:
    summary = folder / "summary.json"
    if not summary.exists():
        return False
    sizes = {part["file"]: part["bytes"] for part in json.loads(summary.read_text())["parts"]}
    paths = {path.name: path.stat().st_size for path in folder.glob("part-*.pt")}
    for name in [name for name in paths if paths[name] != sizes.get(name)]:
        print(f"note: {folder / name} is damaged and made anew", file=sys.stderr)
        (folder / name).unlink()
        paths.pop(name)
    return paths == sizes


def _build(folder: Path, source: Source, options: Options, workers: int) -> None:
    for left in folder.glob(".*.part"):  # of a writer that was killed
        left.unlink()
    names: list[str] = []
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"{source.name}: graphs", total=source.total)

        def jobs() -> Iterator[tuple[Path, list[Record]]]:
            for number, chunk in enumerate(_chunks(source.records())):
                path = folder / f"part-{number:06d}.pt"
                names.append(path.name)
                if path.exists() and _header(path) is not None:
                    progress.update(bar, advance=len(chunk))
                else:
                    yield path, chunk

        for rows in _work(jobs(), source.make, options, workers):
            progress.update(bar, advance=rows)
    _summarise(folder, source, names)


def _chunks(records: Iterator[Record]) -> Iterator[list[Record]]:
    """Bounded in rows and in pairs of atoms, since memory grows with those."""
    chunk: list[Record] = []
    pairs = 0
    for record in records:
        if chunk and (len(chunk) == _ROWS or pairs + record.size**2 > _PAIRS):
            yield chunk
            chunk, pairs = [], 0
        chunk.append(record)
        pairs += record.size**2
    if chunk:
        yield chunk


def _work(
    jobs: Iterable[tuple[Path, list[Record]]],
    make: Callable[[Any], Data],
    options: Options,
    workers: int,
) -> Iterator[int]:
    """Write the parts, and say how many rows each had; few chunks are in memory at a time."""
    if not workers:
        yield from (_write(path, chunk, make, options) for path, chunk in jobs)
        return
    # a fork of this process, which has torch's threads, may hang: fork one that only imported them
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as pool:
        waiting: set[Future[int]] = set()
        try:
            for path, chunk in jobs:
                waiting.add(pool.submit(_write, path, chunk, make, options))
                if len(waiting) >= workers + _AHEAD:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            yield from (future.result() for future in waiting)
        except BrokenProcessPool as error:
            text = "a worker that made graphs was killed, perhaps for its memory"
            raise UserError(f"{text}: run again with fewer data.workers to continue") from error
        finally:
            pool.shutdown(cancel_futures=True)


def _write(path: Path, chunk: list[Record], make: Callable[[Any], Data], options: Options) -> int:
    packed = encode([(record.row, record.content) for record in chunk], make, *options)
    buffer = io.BytesIO()
    torch.save(packed, buffer)
    write_atomically(path, buffer.getvalue())
    return len(chunk)


def _header(path: Path) -> Packed | None:
    """A part as it lies in its file; None where it cannot be read."""
    try:
        return torch.load(path, mmap=True, weights_only=True)
    except Exception:  # whatever a damaged archive makes the reader raise
        return None


def _summarise(folder: Path, source: Source, names: list[str]) -> None:
    parts, skipped = [], dict[str, Any]()
    rows = 0
    for name in names:
        packed = _header(folder / name)
        if packed is None:
            raise UserError(f"{folder / name} cannot be read: delete it and run again")
        size = (folder / name).stat().st_size
        parts.append({"file": name, "graphs": graphs_in(packed), "bytes": size})
        rows += packed["rows"]
        for row, reason in packed["skipped"]:
            entry = skipped.setdefault(reason, {"count": 0, "first": []})
            entry["count"] += 1
            entry["first"] += [row] if len(entry["first"]) < 3 else []
    summary = {"name": source.name, "rows": rows, "skipped": skipped, "parts": parts}
    if not any(part["graphs"] for part in parts):
        where = f" in {source.files[0]}" if source.files else ""
        reasons = f": {told(skipped)}" if skipped else ""
        raise UserError(f"{source.name} has no molecule that can be used{where}{reasons}")
    write_atomically(folder / "summary.json", json.dumps(summary, indent=1) + "\n")


def told(skipped: Mapping[str, Any]) -> str:
    """What was left out and why, in words; rows count from 1.

    >>> told({"an invalid SMILES": {"count": 4, "first": [2, 6, 7]}})
    '4 with an invalid SMILES (rows 3, 7, 8, ...)'
    """
    reasons = []
    for reason, entry in skipped.items():
        first = ", ".join(str(row + 1) for row in entry["first"])
        more = ", ..." if entry["count"] > len(entry["first"]) else ""
        rows = "row" if entry["count"] == 1 else "rows"
        reasons.append(f"{entry['count']} with {reason} ({rows} {first}{more})")
    return ", ".join(reasons)
