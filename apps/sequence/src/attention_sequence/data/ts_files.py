"""Time series in `.ts` files: find, read, check, and interpolate them."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from experiment_kit.data.datamodule import find_data_root
from experiment_kit.errors import UserError

_LAYOUTS = (
    "{name}",
    "timeseries/{name}",
    "Multivariate_ts/{name}",
    "Multivariate_ts/Multivariate_ts/{name}",  # the archive may have a top folder of its own
)


class SeriesSet(NamedTuple):
    """Series (F, T) of possibly unequal length, their labels as text, and their file."""

    series: list[np.ndarray]
    labels: np.ndarray
    path: Path


def find_ts_file(name: str, split: str, data_dir: str | None) -> Path:
    """Return the file of a data set's split: under `data_dir`, else in the aeon package.

    `data_dir` defaults to the environment's DATA_DIR. Raises UserError if there is none.
    """
    import aeon.datasets  # takes 2-4 s, which the command line alone does not need

    file = f"{name}_{split}.ts"
    root = find_data_root(data_dir)
    folders = [root / layout.format(name=name) for layout in _LAYOUTS] if root else []
    for folder in [*folders, Path(aeon.datasets.__file__).parent / "data" / name]:
        if (folder / file).is_file():
            return folder / file
    where = f"in DATA_DIR {root}" if root else "in the aeon package; set DATA_DIR"
    raise UserError(
        f"data.dataset_name: no {name}/{file} {where} (`make data DATA=uea` downloads the archive)"
    )


def read_ts_file(path: Path) -> SeriesSet:
    """Read a `.ts` file.

    Raises UserError for a file that is empty, malformed, or has a series without any value or with
    an infinite one.
    """
    from aeon.datasets import load_from_ts_file

    try:
        series, labels = load_from_ts_file(str(path))
        if not len(series):
            raise IndexError
    except IndexError:
        raise UserError(f"{path} holds no series") from None
    except (OSError, ValueError) as error:
        reason = str(error).partition("encoding='utf-8'>. ")[2] or str(error)
        raise UserError(f"{path} is not a readable .ts file: {reason}") from None
    for index, values in enumerate(series):
        wrong = np.isnan(values).all(axis=1) | np.isinf(values).any(axis=1)
        if wrong.any():
            feature = f"series {index}, feature {wrong.argmax()}"
            raise UserError(f"{path}: {feature} has no value, or an infinite one")
    return SeriesSet(list(series), np.asarray(labels), path)


class SeriesCounts(NamedTuple):
    """The number of series, of their features, and of steps of the longest one; their labels."""

    series: int
    features: int
    length: int
    labels: frozenset[str]


def count_series(path: Path) -> SeriesCounts:
    """Count what a `.ts` file with labels holds, by its separators; aeon takes a minute for it."""
    count = features = length = 0
    labels = set()
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.lstrip()[:1] in ("", "@", "#", "%"):
                continue
            count, features = count + 1, max(features, line.count(":"))
            length = max(length, line.partition(":")[0].count(",") + 1)
            labels.add(line.rpartition(":")[2].strip())
    return SeriesCounts(count, features, length, frozenset(labels))


def interpolate_missing(series: np.ndarray) -> np.ndarray:
    """Fill missing values linearly along time, at the ends with the nearest value.

    Shapes: (F, T) -> (F, T); every feature has a value somewhere.

    >>> interpolate_missing(np.array([[np.nan, 1.0, np.nan, 3.0]]))
    array([[1., 1., 2., 3.]])
    """
    missing = np.isnan(series)
    if not missing.any():
        return series
    time = np.arange(series.shape[1])
    features = zip(series, missing, strict=True)
    return np.stack([np.interp(time, time[~gaps], values[~gaps]) for values, gaps in features])
