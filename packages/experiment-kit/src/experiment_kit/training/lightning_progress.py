"""Corrections of Lightning that a run needs to resume within an epoch: counters and metrics.

As in `lightning_patches`, each names the reason upstream and its test.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.connectors.logger_connector import result as results
from torchmetrics import Metric


@contextmanager
def rewind_progress(trainer: Any) -> Iterator[None]:
    """Set the counters of the loops back to what is done, for a checkpoint between two batches.

    Lightning means to save within the hooks of a batch. What follows them, the validation and the
    logged values of that batch, is then lost to a run that resumes.
    https://github.com/Lightning-AI/pytorch-lightning/issues/20277
    Sets `fit_loop.epoch_progress` and, of its `epoch_loop`, `batch_progress` and
    `_batches_that_stepped`, the step of loggers.
    Test: tests/kit/training/test_checkpoints.py, test_a_stop_at_any_batch_changes_nothing.
    """
    epochs, loop = trainer.fit_loop.epoch_progress, trainer.fit_loop.epoch_loop
    batches, steps = loop.batch_progress, loop._batches_that_stepped
    before = epochs.state_dict(), batches.state_dict()
    is_within_epoch = batches.current.ready > batches.current.started
    for tracker in (epochs.total, epochs.current, batches.total, batches.current):
        tracker.ready = tracker.started
    if is_within_epoch:
        batches.is_last_batch = False
        # it resumes after a validation with a pass without a batch, which it counts as a step
        loop._batches_that_stepped -= loop._should_check_val_fx(trainer.fit_loop._data_fetcher)
    try:
        yield
    finally:
        epochs.load_state_dict(before[0])
        batches.load_state_dict(before[1])
        loop._batches_that_stepped = steps


def dump_metrics(trainer: Any, module: LightningModule) -> dict[str, Any]:
    """Return what this rank has logged in an unfinished epoch, and the states of its metrics.

    Lightning saves neither: means and metrics of a resumed epoch would be those of its rest.
    https://github.com/Lightning-AI/pytorch-lightning/issues/13225
    Reads `fit_loop.epoch_loop._results`.
    Test: tests/kit/training/test_checkpoints.py, test_a_stop_at_any_batch_changes_nothing.
    """
    logged = {}
    for key, result in trainer.fit_loop.epoch_loop._results.items():
        if not result.has_reset:
            meta = {**vars(result.meta), "reduce_fx": result.meta.reduce_fx.__name__}
            sync = meta.pop("_sync")
            meta["sync"] = {"_should": sync.should, "rank_zero_only": sync.rank_zero_only}
            names = ("value", "cumulated_batch_size", "_forward_cache", "_update_count")
            state = {name: vars(result)[name] for name in names if name in vars(result)}
            logged[key] = meta, {k: v for k, v in state.items() if not isinstance(v, Metric)}
    metrics = {
        name: {key: getattr(metric, key) for key in (*metric._defaults, "_update_count")}
        for name, metric in module.named_modules()
        if isinstance(metric, Metric) and metric._update_count
    }
    return move_data_to_device({"logged": logged, "metrics": metrics}, torch.device("cpu"))


def restore_metrics(trainer: Any, module: LightningModule, saved: dict[str, Any]) -> None:
    """Restore what `dump_metrics` returned."""
    for key, (meta, state) in saved["logged"].items():
        sync = meta.pop("sync")
        data = results._Metadata(**meta)
        data.sync = results._Sync(fn=trainer.strategy.reduce, **sync)
        result = results._ResultMetric(data, is_tensor="value" in state)
        vars(result).update(state)
        if not result.is_tensor:
            result.value = module.get_submodule(data.metric_attribute or "")
        trainer.fit_loop.epoch_loop._results[key] = result.to(module.device)
    for name, state in saved["metrics"].items():
        metric: Any = module.get_submodule(name)
        vars(metric).update(move_data_to_device(state, metric.device))
    if saved["logged"]:  # else Lightning would reset them at the first batch
        trainer._logger_connector._first_loop_iter = False
