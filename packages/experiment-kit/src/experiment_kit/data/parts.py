"""Old base of data modules, for apps that have not changed over."""  # shim: issue 16

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from experiment_kit.data.loaders import build_train_loader


class PartsData(LightningDataModule):
    """Use `SplitDataModule`."""

    parts: dict[str, Any]
    batch_size: int
    seed: int
    num_workers: int = 0

    @property
    def collate(self) -> Callable[[list[Any]], Any] | None:
        """None."""
        return None

    def _options(self) -> dict[str, Any]:
        return {
            "num_workers": self.num_workers,
            "persistent_workers": self.num_workers > 0,
            "pin_memory": torch.cuda.is_available(),
            "collate_fn": self.collate,
        }

    def shuffled(self, part: str, **options: Any) -> DataLoader[Any]:
        """Load a part for training."""
        dataset, size = self.parts[part], self.batch_size
        return build_train_loader(
            dataset, size, self.seed, self.trainer, **self._options(), **options
        )

    def in_order(self, part: str) -> DataLoader[Any]:
        """Load a part in its order."""
        return DataLoader(self.parts[part], batch_size=self.batch_size, **self._options())

    def train_dataloader(self) -> Any:
        """Load train."""
        return self.shuffled("train")

    def val_dataloader(self) -> Any:
        """Load val."""
        return self.in_order("val")

    def test_dataloader(self) -> Any:
        """Load test."""
        return self.in_order("test")

    def predict_dataloader(self) -> Any:
        """Load test."""
        return self.in_order("test")
