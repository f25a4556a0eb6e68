"""The UEA archive: multivariate classification data sets in `.ts` files.

https://www.timeseriesclassification.com. Series are (F, T) in files, (T, F) in batches.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from experiment_kit.data.csv_files import read_text_lines
from experiment_kit.data.datamodule import check_at_least, find_data_root, split_stratified
from experiment_kit.errors import UserError, convert_user_errors
from experiment_kit.run_files import warn_once
from torch.utils.data import TensorDataset

from attention_sequence.data.base import SequenceData, SequenceInfo

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
    """Return the file of a data set's split: below DATA_DIR, else in this package."""
    file, root = f"{name}_{split}.ts", find_data_root(data_dir)
    folders = [root / layout.format(name=name) for layout in _LAYOUTS] if root else []
    for folder in (*folders, Path(__file__).parent / "uea_series" / name):
        if (folder / file).is_file():
            return folder / file
    where = f"in DATA_DIR {root}" if root else "in this package; set DATA_DIR"
    text = f"data.dataset_name: no {name}/{file}"
    raise UserError(f"{text} {where} (`allpass data uea` downloads the archive)")


def read_ts_rows(path: Path) -> Iterator[tuple[int, list[str], str]]:
    """Yield of each series its line, its features, and its label, empty in a file without labels.

    Of a step with a time stamp, `(time, value)`, the value is kept.
    """
    header = {"@classlabel": True}
    names: list[str] = []
    for number, line in enumerate(map(str.strip, read_text_lines(path)), 1):
        if line.startswith("@"):
            key, *words = line.split()
            first = words[0].lower() if words else ""
            header[key.lower()] = first == "true"
            if key.lower() == "@classlabel":  # true may be left out before the names
                header["@classlabel"], names = first != "false", words[first == "true" :]
            if key.lower() == "@timestamps" and first == "true":
                text = "time stamps are dropped: steps count as equally spaced"
                print(f"note: {path}: {text}", file=sys.stderr)
            if header.get("@targetlabel"):
                raise UserError(f"{path}, line {number}: its targets are numbers, not classes")
        elif line and line[0] not in "#%":
            features, _, label = line.rpartition(":") if header["@classlabel"] else (line, "", "")
            if not features:
                text = "no value, or no ':' and class label"
                raise UserError(f"{path}, line {number} is no series: {text}")
            if header.get("@timestamps"):
                features = re.sub(r"\([^(),]*,([^(),]*)\)", r"\1", features)
            label = label.strip()
            if names and label and label not in names:
                text = f"{label:.40} is a class of its own: @classLabel does not list it"
                text += " (if they have no labels, write @classLabel false)" * ("," in label)
                print(f"warning: {path}, line {number}: {text}", file=sys.stderr)
                names = []  # one warning is enough
            yield number, features.split(":"), label


def read_ts_file(path: Path) -> SeriesSet:
    """Read a `.ts` file; `?` and `NaN` are missing values."""
    series: list[np.ndarray] = []
    labels = []
    for number, features, label in read_ts_rows(path):
        with convert_user_errors(ValueError, prefix=f"{path}, line {number} is no series: "):
            if len(steps := sorted({one.count(",") + 1 for one in features})) > 1:
                raise ValueError(f"features of {steps} steps: fill them (a label has no ':')")
            values = np.stack([np.array(x.replace("?", "nan").split(","), float) for x in features])
        if series and len(values) != len(series[0]):
            counted = f"{len(values)} features, not {len(series[0])}"
            raise UserError(f"{path}, line {number}: {counted} as in the first series")
        too_large = np.abs(values) > np.finfo(np.float32).max
        wrong = np.isnan(values).all(axis=1) | too_large.any(axis=1)
        if wrong.any():
            feature = f"line {number}, feature {wrong.argmax()}"
            raise UserError(f"{path}: {feature} has no value, or one beyond 3e38")
        series.append(values)
        labels.append(label)
    if not series:
        raise UserError(f"{path} holds no series")
    _note_missing(series, path)
    return SeriesSet(series, np.array(labels), path)


def _note_missing(series: list[np.ndarray], path: Path) -> None:
    gaps = [np.isnan(one) for one in series]
    if count := sum(gap.sum() for gap in gaps):
        text = f"{count} of {sum(gap.size for gap in gaps)} values are missing and interpolated"
        if ends := sum(np.logical_and.accumulate(gap.all(0)[::-1]).sum() for gap in gaps):
            text += f", also {ends} whole steps at the end of series: cut these for padding"
        print(f"note: {path}: {text}", file=sys.stderr)


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


class UEA(SequenceData):
    """One data set of the UEA archive, with the papers' preprocessing.

    Missing values are interpolated along time, and features scaled by the mean and standard
    deviation of the training series. `dataset_name` is the name of any folder of `.ts` files;
    `SIZES` are those that AGF's Table 9 prints, for measurements without files. Under protocol
    `validation`, a stratified `val_fraction` of TRAIN is held out.

    Args:
        max_length: Steps to which series are cut, or padded with 0; null is the longest of TRAIN.
        train_split: TEST trains on the test series, with a warning; null is TRAIN.

    Source of the sizes: Table 9 of https://arxiv.org/abs/2505.08516
    """

    SIZES: ClassVar[Mapping[str, SequenceInfo]] = {
        "EthanolConcentration": SequenceInfo(3, 4, 1751),
        "FaceDetection": SequenceInfo(144, 2, 62),
        "Handwriting": SequenceInfo(3, 26, 152),
        "Heartbeat": SequenceInfo(61, 2, 405),
        "JapaneseVowels": SequenceInfo(12, 9, 29),
        "PEMS-SF": SequenceInfo(963, 7, 144),
        "SelfRegulationSCP1": SequenceInfo(6, 2, 896),
        "SelfRegulationSCP2": SequenceInfo(7, 2, 1152),
        "SpokenArabicDigits": SequenceInfo(13, 10, 93),
        "UWaveGestureLibrary": SequenceInfo(3, 8, 315),
    }

    def __init__(
        self,
        dataset_name: str,
        data_dir: str | None = None,
        max_length: int | None = None,
        val_fraction: float = 0.2,
        batch_size: int = 16,
        train_split: Literal["TRAIN", "TEST"] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            dataset_name, data_dir, val_fraction=val_fraction, batch_size=batch_size, **kwargs
        )
        check_at_least(1, max_length=max_length)
        self.truncate = max_length
        self.train_split = train_split or "TRAIN"

    @classmethod
    def find_data(cls, dataset_name: str, data_dir: str | None = None) -> Path:
        """Return the file of TRAIN."""
        return find_ts_file(dataset_name, "TRAIN", data_dir)

    @classmethod
    def count_samples(cls, dataset_name: str, data_dir: str | None = None) -> dict[str, int]:
        """Count series, features, steps of the longest series, and classes."""
        files = (find_ts_file(dataset_name, split, data_dir) for split in ("TRAIN", "TEST"))
        train, test = ([*read_ts_rows(path)] for path in files)  # numbers would take a minute
        return {
            "train": len(train),
            "test": len(test),
            "features": max(len(features) for _, features, _ in train),
            "length": max(x.count(",") + 1 for _, features, _ in train + test for x in features),
            "classes": len({label for *_, label in train}),
        }

    def list_data_files(self) -> Sequence[Path]:
        """List the files of TRAIN and TEST."""
        splits = ("TRAIN", "TEST")
        return [find_ts_file(self.dataset_name, split, self.data_dir) for split in splits]

    @cached_property
    def train_set(self) -> SeriesSet:
        """TRAIN as in its file; raises UserError if it has fewer than two classes."""
        train = self._read_split(self.train_split)
        if len(set(train.labels)) < 2:
            raise UserError(f"{train.path} has 1 class(es): classification takes two")
        if count := np.isin(train.labels, ("?", "nan", "NaN")).sum():
            warn_once(f"{train.path} has {count} series of a class ? or nan: remove them")
        return train

    @property
    def num_features(self) -> int:  # type: ignore[override]
        """Features of a step."""
        return len(self.train_set.series[0])

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        """Classes in TRAIN."""
        return len(self.label_names)

    @property
    def max_length(self) -> int:  # type: ignore[override]
        """Steps that the model receives."""
        return self.truncate or max(series.shape[1] for series in self.train_set.series)

    def load_splits(self, split: str) -> dict[str, Any]:
        """Read both files, split TRAIN, and scale and pad all series."""
        train = self.train_set
        for path in sorted(train.path.parent.glob(f"{self.dataset_name}_[VvDd][AaEe][LlVv]*.ts")):
            text = "a part of TRAIN validates (data.val_fraction): append its series to TRAIN"
            warn_once(f"{path} is not read: {text}")
        test = self._read_split("TEST")
        if self.train_split == "TEST":
            text = f"{self.dataset_name} is trained on {test.path.name}, on which it is tested"
            warn_once(f"{text} (data.train_split): its score says nothing")
        if unseen := sorted(set(test.labels) - set(train.labels)):
            raise UserError(f"{test.path} has labels that TRAIN does not: {', '.join(unseen)}")
        self._check_features(test)
        kept, held_out = np.arange(len(train.series)), None
        if self.protocol == "validation":
            kept, held_out = split_stratified(train.labels, self.val_fraction, self.seed)
        steps = np.concatenate([interpolate_missing(train.series[i]) for i in kept], axis=1)
        # as the archive's users do, ddof = 1 and an epsilon
        std = steps.std(1, ddof=1) + np.finfo(float).eps
        if (constant := np.ptp(steps, axis=1) == 0).any():
            std[constant] = 1  # another value in TEST would be 1e15
            print(f"note: {train.path}: {constant.sum()} features are constant", file=sys.stderr)
        self.scaling = steps.mean(1), std
        scored = self._build_dataset(test, np.arange(len(test.series)))
        val = scored if held_out is None else self._build_dataset(train, held_out)
        return {"train": self._build_dataset(train, kept), "val": val, "test": scored}

    def _read_split(self, split: str) -> SeriesSet:
        found = read_ts_file(find_ts_file(self.dataset_name, split, self.data_dir))
        if "" in found.labels:
            raise UserError(f"{found.path} has series without a class label")
        return found

    def _check_features(self, found: SeriesSet) -> None:
        if (count := len(found.series[0])) != self.num_features:
            hint = " (if they have no labels, write @classLabel false)"
            counted = f"{count} features, and {self.dataset_name} has {self.num_features}"
            hint *= count == self.num_features - 1  # the last was read as a label
            raise UserError(f"{found.path} has series of {counted}{hint}")

    def _build_dataset(self, split: SeriesSet, chosen: Sequence[int] | np.ndarray) -> TensorDataset:
        mean, std = self.scaling
        if longer := sum(split.series[i].shape[1] > self.max_length for i in chosen):
            text = f"{longer} series are cut to {self.max_length} steps (data.max_length)"
            print(f"note: {split.path}: {text}", file=sys.stderr)
        x = torch.zeros(len(chosen), self.max_length, len(mean))  # (S, N, F)
        mask = torch.zeros(x.shape[:2], dtype=torch.bool)
        for row, index in enumerate(chosen):
            series = interpolate_missing(split.series[index]).T
            values = ((series - mean) / std)[: self.max_length]
            x[row, : len(values)] = torch.from_numpy(values)
            mask[row, : len(values)] = True
        labels = np.searchsorted(np.unique(self.train_set.labels), split.labels[chosen])
        return TensorDataset(x, mask, torch.from_numpy(labels))

    @property
    def label_names(self) -> Sequence[str]:
        """Names of the classes."""
        return np.unique(self.train_set.labels).tolist()

    def read_files(self, files: Sequence[Path]) -> tuple[list[str], TensorDataset]:
        """Read the series of .ts files, with labels or without; a name is a file and a number."""
        self.load_splits("train")  # sets the scaling
        sets = [read_ts_file(path) for path in files]
        for found in sets:
            self._check_features(found)
        series = [one for found in sets for one in found.series]
        labels = np.repeat(self.train_set.labels[:1], len(series))
        names = [f"{s.path}:{number}" for s in sets for number in range(1, len(s.series) + 1)]
        return names, self._build_dataset(SeriesSet(series, labels, files[0]), range(len(series)))


class UEAShapes(UEA):
    """A data set of the UEA archive that has the sizes in `SIZES` without reading a file.

    Other data sets, such as BasicMotions, are read.
    """

    @cached_property
    def train_set(self) -> SeriesSet:
        """One series of zeros, and the labels."""
        size = self.SIZES.get(self.dataset_name)
        if size is None:
            return super().train_set
        series = np.zeros((size.num_features, size.max_length))
        return SeriesSet([series], np.arange(size.num_classes), Path(self.dataset_name))
