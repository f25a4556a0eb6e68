"""The seeds of a cell: their values as they are written, what comes of them, and their union."""

from collections.abc import Iterable, Mapping
from statistics import fmean, stdev
from typing import Any

from experiment_kit.tables.origin import is_random, joined, parts

FINER = 2  # decimals that a value has more than the mean, so that this can be made again
LISTS = ("values", "run")  # what a cell has of each of its seeds, in the order of `seeds`

Record = dict[str, Any]


def written(values: Iterable[float], digits: int) -> str:
    """Write the values of a cell whose mean has so many digits.

    >>> written([79.0, 80.5], digits=1)
    '79.000 80.500'
    """
    return " ".join(f"{value:.{digits + FINER}f}" for value in values)


def summary(values: str) -> Record:
    """Mean and sample standard deviation of written values; of one value there is no deviation.

    >>> summary("79.000 80.500")
    {'mean': 79.8, 'std': 1.1}
    """
    texts = values.split()
    digits = max(0, *(len(text.partition(".")[2]) - FINER for text in texts), 0)
    numbers = [float(text) for text in texts]
    return {
        "mean": round(fmean(numbers), digits) if numbers else float("nan"),
        "std": round(stdev(numbers), digits) if len(numbers) > 1 else float("nan"),
    }


def laid(new: Record, old: Record) -> Record:
    """A cell that was measured again, be it for other seeds, on another machine.

    Seeds unite where both cells have their values; in an old file, the cell that has more of them
    is kept. Random weights replace others, and are replaced, whole.
    """
    if is_random(new["origin"]) != is_random(old["origin"]):
        return new
    if old["values"] and new["values"]:
        return united(old, new)
    return old if len(new["seeds"].split()) < len(old["seeds"].split()) else new


def united(old: Record, new: Record) -> Record:
    """A cell of the seeds of both; of a seed that both have, the new value is taken.

    >>> one = {"seeds": "0 1", "values": "79.000 80.500", "run": "a b", "origin": ""}
    >>> united(one, one | {"seeds": "1", "values": "81.000", "run": "c"})["values"]
    '79.000 81.000'
    """
    kept, added = by_seed(old), by_seed(new)
    both = sorted((kept | added).items())
    lists = (" ".join(column) for column in zip(*(of for _, of in both), strict=True))
    found = dict(zip(LISTS, lists, strict=True))
    origins = [*(parts(old["origin"]) if kept.keys() - added else ()), *parts(new["origin"])]
    seeds = " ".join(str(seed) for seed, _ in both)
    return {**new, **found, "seeds": seeds, "origin": joined(origins), **summary(found["values"])}


def check_seeds(cells: Iterable[Mapping[str, str]]) -> None:
    """Refuse with a `ValueError` a cell that has not one number and one run for each seed."""
    for cell in cells:
        if cell["values"]:
            by_seed(cell)
            summary(cell["values"])


def by_seed(cell: Mapping[str, str]) -> dict[int, tuple[str, ...]]:
    """What a cell has of each seed."""
    seeds, *lists = (cell[name].split() for name in ("seeds", *LISTS))
    if {*map(len, lists)} != {len(seeds)}:
        place = f"row {cell['row']}, column {cell['column']}"
        raise ValueError(f"{place}, needs one value and one run for each of its {len(seeds)} seeds")
    return {int(seed): of for seed, of in zip(seeds, zip(*lists, strict=True), strict=True)}
