"""What rows of the same label are called, so that a reader can tell them apart."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any


def tell_apart(labels: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Add to each label the facts that differ among the rows that share it.

    >>> tell_apart(["DeiT-S", "DeiT-S", "CaiT-S"], [{"layers": 12}, {"layers": 24}, {"layers": 24}])
    ['DeiT-S, layers=12', 'DeiT-S, layers=24', 'CaiT-S']
    >>> tell_apart(["GFSA", "GFSA"], [{}, {}])
    ['GFSA', 'GFSA (2)']
    """
    called = list(labels)
    for name in dict.fromkeys(name for row in facts for name in row):
        values: dict[str, set[Any]] = defaultdict(set)
        for label, row in zip(called, facts, strict=True):
            values[label].add(row.get(name))
        called = [
            f"{label}, {name}={row.get(name)}" if len(values[label]) > 1 else label
            for label, row in zip(called, facts, strict=True)
        ]
    times = [called[: i + 1].count(label) for i, label in enumerate(called)]
    return [f"{label} ({n})" if n > 1 else label for label, n in zip(called, times, strict=True)]
