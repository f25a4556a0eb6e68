"""Time series as they lie in `.ts` files: found, read, checked, completed, split."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from experiment_kit.data.local import data_folder
from experiment_kit.errors import UserError

_LAYOUTS = (
    "{name}",
    "timeseries/{name}",
    "Multivariate_ts/{name}",
    "Multivariate_ts/Multivariate_ts/{name}",  # the archive may have a top folder of its own
)


class Series(NamedTuple):
    """Samples (F, T) of possibly unequal length, and their labels as text."""

    samples: list[np.ndarray]
    labels: np.ndarray
    path: Path


def locate(name: str, split: str, data_dir: str | None) -> Path:
    """The file of a data set's split: under `data_dir`, else as the aeon package ships it.

    `data_dir` defaults to the environment's DATA_DIR. Raises UserError where there is none.

    >>> locate("JapaneseVowels", "TRAIN", None).name
    'JapaneseVowels_TRAIN.ts'
    """
    file = f"{name}_{split}.ts"
    root = data_folder(data_dir)
    roots = [root / layout.format(name=name) for layout in _LAYOUTS] if root else []
    for folder in [*roots, _bundled() / name]:
        if (folder / file).is_file():
            return folder / file
    where = f"in DATA_DIR {root}" if root else "in the aeon package; set DATA_DIR"
    raise UserError(f"no {name}/{file} {where} (`make data-uea` downloads the archive)")


def _bundled() -> Path:
    import aeon.datasets  # 2-4 s: not for those who only look at the command line

    return Path(aeon.datasets.__file__).parent / "data"


def read(path: Path) -> Series:
    """Read a `.ts` file.

    Raises UserError for a file that is empty, malformed, or has a series without any value or with
    an infinite one.
    """
    from aeon.datasets import load_from_ts_file

    try:
        samples, labels = load_from_ts_file(str(path))
        if not len(samples):
            raise IndexError
    except IndexError:
        raise UserError(f"{path} holds no series") from None
    except (OSError, ValueError) as error:
        reason = str(error).partition("encoding='utf-8'>. ")[2] or str(error)
        raise UserError(f"{path} is not a readable .ts file: {reason}") from None
    for index, sample in enumerate(samples):
        if np.isnan(sample).all(axis=1).any():
            feature = int(np.isnan(sample).all(axis=1).argmax())
            raise UserError(f"{path}: series {index} has no value at all in feature {feature}")
        if np.isinf(sample).any():
            feature = int(np.isinf(sample).any(axis=1).argmax())
            raise UserError(f"{path}: series {index} has an infinite value in feature {feature}")
    return Series(list(samples), np.asarray(labels), path)


def interpolate(sample: np.ndarray) -> np.ndarray:
    """Fill missing values linearly along time, at the ends by the nearest value.

    Shapes: (F, T) -> (F, T); every feature has a value somewhere.

    >>> interpolate(np.array([[np.nan, 1.0, np.nan, 3.0]]))
    array([[1., 1., 2., 3.]])
    """
    missing = np.isnan(sample)
    if not missing.any():
        return sample
    time = np.arange(sample.shape[1])
    rows = zip(sample, missing, strict=True)
    return np.stack([np.interp(time, time[~gone], row[~gone]) for row, gone in rows])
