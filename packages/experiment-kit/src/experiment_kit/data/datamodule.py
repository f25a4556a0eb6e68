"""The LightningDataModule of all apps, the folders of local data, and validation samples."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from experiment_kit.data.loaders import build_train_loader
from experiment_kit.errors import UserError
from experiment_kit.parsing import save_plain_hyperparameters

Protocol = Literal["validation", "test"]


class SplitDataModule(LightningDataModule):
    """The splits of a data set: train in an order by seed and epoch, val and test as they are.

    A subclass passes its other arguments on, and gives its own default by naming an argument:

        class Images(SplitDataModule):
            DATASETS = {"cifar10": ImageInfo(...), "cifar100": ImageInfo(...)}

            def __init__(self, dataset_name: str, batch_size: int = 128, **kwargs: Any):
                super().__init__(dataset_name, batch_size=batch_size, **kwargs)

    It must define `DATASETS`, the names that `dataset_name` may have (or names -> what is known of
    each), `find_data`, and `load_splits` (or `setup`). It may define `collate`, the loaders, and

    - `STAGES`: the splits that each stage needs, if training needs more than train and val;
    - `describe_inputs` and `list_targets`, for people who read single samples;
    - `read_files`, `label_names` and `list_names`, for predictions of files that a user names;
    - `count_samples`, if a paper prints the sizes of the data set;
    - `list_data_files`, if `find_data` returns less or more than what is read, or `IS_GENERATED`;
    - `LINKED_SIZES`: attributes, whole numbers, that the app links to arguments of its model.

    Args:
        dataset_name: Name of the data set.
        data_dir: Folder of local data; null is that of DATA_DIR.
        protocol: `validation` chooses the epoch on validation data and scores the test split once;
            `test`, which papers use, chooses it on the test split: an upper bound.
        val_fraction: Fraction of the training data held out if there is no validation split.
        batch_size: Samples of a step on one device.
        num_workers: Processes that load data.
        seed: Number that the order of training and the held-out samples depend on.
    """

    DATASETS: ClassVar[Collection[str]] = ()
    STAGES: ClassVar[Mapping[str, Sequence[str]]] = {
        "fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("test",),
    }  # fmt: skip
    LINKED_SIZES: ClassVar[Sequence[str]] = ()
    IS_GENERATED: ClassVar[bool] = False  # by the code alone, or by the version of Python

    def __init__(
        self,
        dataset_name: str,
        data_dir: str | None = None,
        protocol: Protocol = "validation",
        val_fraction: float = 0.1,
        batch_size: int = 32,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if self.DATASETS:
            check_one_of("dataset_name", dataset_name, self.DATASETS)
        if None in (protocol, val_fraction, batch_size, num_workers):
            raise ValueError("data.protocol, val_fraction, batch_size, num_workers are never null")
        if not 0 < val_fraction < 1:
            raise ValueError(f"data.val_fraction must be in (0, 1), got {val_fraction}")
        check_at_least(1, batch_size=batch_size)
        check_at_least(0, num_workers=num_workers)
        save_plain_hyperparameters(self, logger=False)  # the model may have one of the same name
        self.dataset_name, self.data_dir, self.protocol = dataset_name, data_dir, protocol
        self.val_fraction, self.seed = val_fraction, seed
        self.batch_size, self.num_workers = batch_size, num_workers
        self.splits: dict[str, Any] = {}

    @classmethod
    def find_data(cls, dataset_name: str, data_dir: str | None = None) -> Path:
        """Return the path of a data set; raises UserError, with the remedy, if it is not there."""
        raise NotImplementedError(f"{cls.__name__} must define find_data")

    @classmethod
    def count_samples(cls, dataset_name: str, data_dir: str | None = None) -> dict[str, int]:
        """Count the samples of train, test and what else a paper prints of a data set, fast."""
        return {}

    def list_data_files(self) -> Sequence[Path]:
        """List the files and folders that the splits are read from; generated data has none."""
        return [] if self.IS_GENERATED else [self.find_data(self.dataset_name, self.data_dir)]

    def list_names(self) -> Mapping[str, Sequence[str]]:
        """Return the names in answers, as of classes and tokens; {} if answers depend on more."""
        return {}

    def load_splits(self, split: str) -> dict[str, Any]:
        """Return the data set of the split, and of any split that is read with it, by name."""
        raise NotImplementedError(f"{type(self).__name__} must define load_splits, or setup")

    def setup(self, stage: str) -> None:
        """Load the splits that a stage needs."""
        for name in self.LINKED_SIZES:  # else the model's default would stay, silently
            if not hasattr(getattr(self, name, None), "__index__"):
                raise TypeError(f"{type(self).__name__} must define {name}")
        for split in self.STAGES[stage]:
            if split not in self.splits:
                self.splits |= self.load_splits(split)

    @property
    def collate(self) -> Callable[[list[Any]], Any] | None:
        """Function that joins items into a batch; None is torch's own."""
        return None

    def loader_options(self) -> dict[str, Any]:
        """Return the DataLoader arguments that all loaders share."""
        return {
            "num_workers": self.num_workers,
            "persistent_workers": self.num_workers > 0,
            "pin_memory": torch.cuda.is_available(),
            "collate_fn": self.collate,
        }

    def train_loader(self, split: str, **options: Any) -> DataLoader[Any]:
        """Build a loader whose order depends on seed and epoch alone; see `build_train_loader`."""
        options = {**self.loader_options(), **options}
        dataset, trainer = self.splits[split], self.trainer
        return build_train_loader(dataset, self.batch_size, self.seed, trainer, **options)

    def eval_loader(self, split: str) -> DataLoader[Any]:
        """Build a loader that keeps the order of the split."""
        # by keyword, from which Lightning's predict rebuilds the loader
        return DataLoader(self.splits[split], batch_size=self.batch_size, **self.loader_options())

    def train_dataloader(self) -> Any:
        """Load the training data."""
        return self.train_loader("train")

    def val_dataloader(self) -> Any:
        """Load the data that chooses the epoch."""
        return self.eval_loader("val")

    def test_dataloader(self) -> Any:
        """Return the loader of the test data."""
        return self.eval_loader("test")

    predict_dataloader = test_dataloader

    def describe_inputs(self, batch: Any) -> list[str]:
        """Return a text that describes each input of a batch; empty by default."""
        return [""] * len(self.list_targets(batch))

    def list_targets(self, batch: Any) -> list[Any]:
        """Return the target of each sample of a batch, by default its last tensor."""
        return batch[-1].tolist()

    @property
    def label_names(self) -> Sequence[str]:
        """Names of the classes by their numbers; none where the data knows none."""
        return ()

    def read_files(self, files: Sequence[Path]) -> tuple[list[str], Any]:
        """Read inputs from files: return their names, and a split whose targets mean nothing."""
        text = f"a run on {self.dataset_name} predicts no files: its inputs have no single"
        raise UserError(f"{text} answer, or are not read from files that a user has")


def check_one_of(argument: str, value: str, allowed: Collection[str]) -> None:
    """Raise ValueError if an argument of the data module is none of the allowed values."""
    if value not in allowed:
        raise ValueError(f"data.{argument} must be one of {', '.join(allowed)}, got {value!r}")


def check_at_least(low: int, **arguments: int | None) -> None:
    """Raise ValueError if an argument of the data module is out of range; None is allowed."""
    for argument, value in arguments.items():
        if value is not None and value < low:
            raise ValueError(f"data.{argument} must be at least {low}, got {value}")


def find_data_root(data_dir: str | None) -> Path | None:
    """Return the folder of local data: the argument, else DATA_DIR, else None."""
    root = os.path.expanduser(data_dir or os.environ.get("DATA_DIR") or "") or None
    if root is not None and not Path(root).is_dir():
        raise UserError(f"data.data_dir or DATA_DIR: {root} is not a folder")
    return None if root is None else Path(root)


def find_dataset(
    data_dir: str | None,
    names: Iterable[str],
    is_dataset: Callable[[Path], bool],
    hint: str,
    subfolders: Sequence[str] = ("",),
) -> Path:
    """Return the first of the names that `is_dataset` in the data root or in its subfolders."""
    first, *_ = names = list(names)
    is_absolute = Path(first).is_absolute()
    root = Path("/") if is_absolute else find_data_root(data_dir)
    if root is None:
        raise UserError(f"no {first}: set DATA_DIR to the folder that contains it ({hint})")
    paths = (root / f"{subfolder}{name}" for name in names for subfolder in subfolders)
    if found := next((path for path in paths if is_dataset(path)), None):
        return found
    within = "".join(f" or its folder {subfolder}" for subfolder in subfolders if subfolder)
    raise UserError(f"no {first}{'' if is_absolute else f' in DATA_DIR {root}{within}'} ({hint})")


def split_stratified(
    labels: np.ndarray, val_fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Split indices into training and validation, by the same fraction of each class.

    A class of two samples or more gives at least one.
    """
    generator = np.random.default_rng(seed)
    held_out = []
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        count = min(max(round(val_fraction * len(members)), 1), len(members) - 1)
        held_out.append(members[:count])
    val = np.sort(np.concatenate(held_out))
    if not len(val):
        raise UserError(f"no class has two of the {len(labels)} samples: none can validate")
    return np.setdiff1d(np.arange(len(labels)), val), val
