"""The length of a run: its optimizer steps, and the samples that it trains on and scores."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiment_kit.app_files import find_app_folder
from experiment_kit.launch.overlays import read_settings

_UNLIMITED = 10**9
_SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class RunLength:
    """Optimizer steps, and the samples that a run trains on and scores."""

    steps: int
    trained: int
    scored: int


@dataclass(frozen=True)
class SplitSizes:
    """Numbers of samples of the splits; without `val` a share of train is held out."""

    train: int
    test: int = 0
    val: int | None = None

    def apply_protocol(self, options: Mapping[str, Any]) -> tuple[int, int, int]:
        """Return the samples that train, choose the epoch, and test, by the data's arguments.

        >>> SplitSizes(270, 370).apply_protocol({"protocol": "validation", "val_fraction": 0.1})
        (243, 27, 370)
        >>> SplitSizes(270, 370).apply_protocol({"protocol": "test"})
        (270, 370, 370)
        """
        if self.val is not None:
            return self.train, self.val, self.test
        if options.get("protocol") == "test":
            return self.train, self.test, self.test
        held_out = round(self.train * options.get("val_fraction", 0.1))
        return self.train - held_out, held_out, self.test


def read_sizes(app: str) -> dict[str, dict[str, Any]]:
    """Return `sizes.yaml` of an app: documented sizes of its data sets and its backbones."""
    folder = find_app_folder(app)
    path = folder and folder / "sizes.yaml"
    return read_settings(path.resolve()) if path and path.is_file() else {}


def count_splits(sizes: Mapping[str, Any], options: Mapping[str, Any]) -> SplitSizes | None:
    """Return the documented sizes of a data set, texts cut to `max_length` tokens; None if none.

    >>> count_splits({"train_tokens": 2500, "test_tokens": 900}, {"max_length": 256})
    SplitSizes(train=9, test=3, val=None)
    """
    names, length = ("train", "test", "val"), options.get("max_length") or 1
    found = {name: sizes[name] for name in names if name in sizes}
    tokens = {name: sizes.get(f"{name}_tokens") for name in names}
    found |= {name: count // length for name, count in tokens.items() if count}
    return SplitSizes(**found) if "train" in found else None


def count_length(config: Mapping[str, Any], sizes: SplitSizes, tests: int = 1) -> RunLength:
    """Count what a run of a merged config does, if nothing stops it early.

    The steps of an epoch are ceil(ceil(samples / batch) / accumulation); the test set is scored
    `tests` times.
    """
    trainer, options = config["trainer"], config["data"]["init_args"]
    train, val, test = sizes.apply_protocol(options)
    batch = count_batch(config) * count_devices(config)
    batches = _limit(math.ceil(train / batch), trainer.get("limit_train_batches"))
    accumulation = count_accumulation(config)
    per_epoch = max(1, math.ceil(batches / accumulation))
    epochs = _read_limit(trainer.get("max_epochs"))
    steps = min(_read_limit(trainer.get("max_steps")), per_epoch * epochs)
    passes = _count_validations(trainer, steps, per_epoch, batches, accumulation)
    val = min(val, batch * _limit(math.ceil(val / batch), trainer.get("limit_val_batches")))
    test = min(test, batch * _limit(math.ceil(test / batch), trainer.get("limit_test_batches")))
    trained = round(steps / per_epoch * min(train, batches * batch))
    return RunLength(steps, trained, passes * val + tests * test)


def count_batch(config: Mapping[str, Any]) -> int:
    """Return the samples of a batch of one device, of recordings the most that it may have."""
    options = config["data"]["init_args"]
    return options.get("max_batch_size") or options.get("batch_size") or 1


def count_accumulation(config: Mapping[str, Any]) -> int:
    """Return the batches of an optimizer step on each device."""
    given = config["trainer"].get("accumulate_grad_batches") or 1
    batch = count_batch(config) * count_devices(config)
    return max(given, (config["model"].get("global_batch") or 0) // batch)


def count_devices(config: Mapping[str, Any]) -> int:
    """Return the devices of a run, each with a process; `auto` is the one that a launcher gives.

    >>> [count_devices({"trainer": {"devices": n}}) for n in (2, "3", [0, 1], "0,1", "auto", -1)]
    [2, 3, 2, 2, 1, 1]
    """
    given = config["trainer"].get("devices")
    if isinstance(given, str) and "," in given:
        given = re.findall(r"\d+", given)
    if isinstance(given, list):
        return len(given)
    return max(1, int(given)) if str(given).lstrip("-").isdecimal() else 1


def find_time_budget(config: Mapping[str, Any]) -> float | None:
    """Return the seconds after which a callback ends the run, None if none does.

    >>> callback = {"class_path": "my.Budget", "init_args": {"time": "24h"}}
    >>> find_time_budget({"trainer": {"callbacks": [callback]}})
    86400.0
    """
    for callback in config["trainer"].get("callbacks") or ():
        time = (callback.get("init_args") or {}).get("time") or ""
        is_budget = callback["class_path"].endswith(".Budget")
        if is_budget and (found := re.fullmatch(r"([\d.]+)([smh])", time)):
            return float(found[1]) * _SECONDS[found[2]]
    return None


def _count_validations(
    trainer: Mapping[str, Any], steps: int, per_epoch: int, batches: int, accumulation: int
) -> int:
    interval, every = trainer.get("val_check_interval"), trainer.get("check_val_every_n_epoch", 1)
    epochs = steps // per_epoch // (every or 1)
    if interval is None:
        return epochs
    if every is None:  # the interval counts batches over all epochs
        return steps * accumulation // int(interval)
    return epochs * (batches // interval if isinstance(interval, int) else int(1 / interval))


def _limit(batches: int, limit: int | float | None) -> int:
    """Apply Lightning's limit: a number of batches, or a share of them."""
    if limit is None:
        return batches
    return min(batches, limit) if isinstance(limit, int) else int(batches * limit)


def _read_limit(limit: int | None) -> int:
    return limit if limit and limit > 0 else _UNLIMITED
