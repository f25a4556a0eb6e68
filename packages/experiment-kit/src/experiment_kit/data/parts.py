"""What every data module of the apps has in common: a data set for each part, and its loader."""

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from experiment_kit.data.loader import epoch_loader


class PartsData(LightningDataModule):
    """Loads the data sets in `parts`: train shuffled by seed and epoch, val and test in order.

    A subclass sets the attributes below in its constructor, fills `parts` in `setup`, and may say
    how items are put together. `predict` reads the test part again.

    >>> data = PartsData()
    >>> data.parts, data.batch_size, data.seed = {"train": range(5), "test": range(5)}, 2, 0
    >>> [batch.tolist() for batch in data.test_dataloader()]
    [[0, 1], [2, 3], [4]]
    """

    parts: dict[str, Any]  # of data sets
    batch_size: int
    seed: int
    num_workers: int = 0

    @property
    def collate(self) -> Callable[[list[Any]], Any] | None:
        """What makes a batch of items; None is torch's own way."""
        return None

    def _options(self) -> dict[str, Any]:
        return {
            "num_workers": self.num_workers,
            "persistent_workers": self.num_workers > 0,
            "pin_memory": torch.cuda.is_available(),
            "collate_fn": self.collate,
        }

    def shuffled(self, part: str, **options: Any) -> DataLoader[Any]:
        """Batches of a part in an order that seed and epoch alone decide; see `epoch_loader`."""
        return epoch_loader(
            self.parts[part],
            self.batch_size,
            self.seed,
            self.trainer,
            **self._options(),
            **options,
        )

    def in_order(self, part: str) -> DataLoader[Any]:
        """Batches of a part as it lies."""
        # by name: Lightning's predict makes the loader anew, and cannot where it is by place
        return DataLoader(self.parts[part], batch_size=self.batch_size, **self._options())

    def train_dataloader(self) -> Any:
        """What is trained on."""
        return self.shuffled("train")

    def val_dataloader(self) -> Any:
        """What chooses the epoch."""
        return self.in_order("val")

    def test_dataloader(self) -> Any:
        """What is scored once."""
        return self.in_order("test")

    def predict_dataloader(self) -> Any:
        """The test set again, in its order."""
        return self.in_order("test")
