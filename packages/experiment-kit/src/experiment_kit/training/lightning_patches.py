"""Correct Lightning and jsonargparse: every use of an API that they do not document.

Each correction names the reason upstream, or else the private attribute, and its test. Elsewhere,
`StepSeed` reads `fit_loop._data_fetcher`, and `AttentionModule` resets `_metric_attributes`.
"""

import io
import logging
import math
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jsonargparse import _core, _subcommands, _typehints
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning_utilities.core.rank_zero import rank_zero_only

from experiment_kit.app_files import flatten_row
from experiment_kit.errors import UserError
from experiment_kit.run_files import write_atomically

State = dict[str, Any]  # what a checkpoint holds
_PATHS = "best_model_path", "kth_best_model_path", "last_model_path"


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write checkpoints beside their target, sync and rename them.

    Lightning moves them from the system's temporary folder, which a crash can cut short.
    https://github.com/Lightning-AI/pytorch-lightning/issues/21253
    Test: tests/kit/test_cli.py, test_an_interrupted_run_resumes_and_ends_as_if_it_had_not_been.
    """

    def __init__(self, sharded: bool = False) -> None:
        self.sharded = sharded

    def save_checkpoint(self, checkpoint: State, path: Any, storage_options: Any = None) -> None:
        """Serialize in memory, then write atomically."""
        buffer = io.BytesIO()
        torch.save({**checkpoint, "sharded": self.sharded}, buffer)
        write_atomically(Path(path), buffer.getvalue())


def disable_sharded_saving(strategy: Any) -> bool:
    """Return True if a strategy's config shards the weights; let it save them as one file."""
    init_args: Any = getattr(strategy, "init_args", {})
    if "save_distributed_checkpoint" not in init_args:
        return False
    init_args.save_distributed_checkpoint = False
    return True


def check_start(path: str | Path, sharded: bool, options: Mapping[str, Any]) -> None:
    """Refuse options that the checkpoint's would replace, and to shard weights that were whole.

    Lightning numbers the optimizer's states otherwise where it shards. The reverse works.
    Test: tests/apps/vision/test_devices.py, test_one_device_goes_on_from_sharded_weights.
    """
    state = torch.load(path, map_location="cpu", weights_only=True)
    old = state.get("hyper_parameters", {})
    known = [x for x in ("optimizer", "weight_decay") if x in old and x in options]
    old, new = (dict(flatten_row({"model": {x: o[x] for x in known}})) for o in (old, options))
    for name in (name for name in old if old[name] != new.get(name, old[name])):
        if not name.endswith((".fused", ".foreach")):  # speed alone
            text = f"{name} is {new[name]}, but ckpt_path goes on with {old[name]}: give that, or"
            raise UserError(f"{text} start from weights (in vision, model.checkpoint)")
    if sharded and not state.get("sharded"):
        text = f"{path} was not trained with sharded weights: continue with the strategy"
        raise UserError(f"{text} it was trained with, or start again in another run.folder")


class BestCheckpoint(ModelCheckpoint):
    """Keep the weights that were validated best, with what callbacks save, but no optimizer.

    They are those of the first batch of the validation, whatever callbacks load before it or after
    it. Without states of callbacks, none changes them when they are tested.
    https://github.com/Lightning-AI/pytorch-lightning/issues/6074
    Test: tests/kit/training/test_lightning_callbacks.py.

    The best checkpoint stays so after the run folder is moved; Lightning's own overwrites it.
    https://github.com/Lightning-AI/pytorch-lightning/pull/12045
    Test: tests/kit/training/test_lightning_patches.py, test_a_moved_run_keeps_its_best_epoch.
    """

    def __init__(self, folder: Path, monitor: str) -> None:
        options: Any = {"save_on_train_epoch_end": False, "enable_version_counter": False}
        super().__init__(folder, "best", monitor, mode="max", **options)
        self.validated: dict[str, Any] = {}
        self.saves = False

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Warn of a run that will not validate, if its length is known."""
        super().on_train_start(trainer, module)
        every, epochs = trainer.check_val_every_n_epoch or 1, trainer.max_epochs or -1
        batches = (trainer.val_check_batch or 0) + (every - 1) * trainer.num_training_batches
        steps = batches / trainer.accumulate_grad_batches  # to the first; 0 where it is by time
        is_short = 0 < epochs < every or 0 < trainer.max_steps < steps < math.inf
        if trainer.is_global_zero and (is_short or not trainer.enable_validation):
            text = "no epoch is validated: the weights at the end of training are tested"
            print(f"warning: {text}", file=sys.stderr)

    def on_validation_batch_start(self, trainer: Any, module: Any, batch: Any, *place: int) -> None:
        """Copy the weights before the first batch."""
        if not any(place) and trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            self.validated = deepcopy(trainer.strategy.lightning_module_state_dict())

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Save them if they are the best."""
        self.saves = True
        super().on_validation_end(trainer, module)
        self.validated, self.saves = {}, False

    def on_save_checkpoint(self, trainer: Trainer, module: Any, checkpoint: State) -> None:
        """Save the validated weights in this checkpoint."""
        if self.saves:
            for key in ("callbacks", "optimizer_states", "lr_schedulers"):
                checkpoint.pop(key)
            checkpoint["state_dict"] = self.validated

    def load_state_dict(self, state_dict: State) -> None:
        """Look for the checkpoints of the state in this folder, by their names."""
        best = state_dict["best_model_path"]
        if best and Path(self._relocate_path(best)).exists():  # else it is the state of another run
            paths = {name: self._relocate_path(state_dict[name]) for name in _PATHS}
            scores = state_dict["best_k_models"].items()
            kept = {self._relocate_path(path): score for path, score in scores}
            state_dict = {**state_dict, "dirpath": self.dirpath, "best_k_models": kept, **paths}
        super().load_state_dict(state_dict)

    def _relocate_path(self, path: str) -> str:
        return str(Path(self.dirpath or "", Path(path).name)) if path else ""


class RestoreLoops(Callback):
    """Restore the position in training before a loader is built: it begins there.

    A loader that is built before the loops are restored is dropped. Between epochs there is nothing
    to restart: with `max_steps`, Lightning would train a stray batch and leave out an epoch.
    https://github.com/Lightning-AI/pytorch-lightning/issues/19617
    https://github.com/Lightning-AI/pytorch-lightning/issues/19764
    Sets the private `fit_loop._restarting` and `fit_loop._combined_loader`.
    Test: tests/kit/data/test_loaders.py, test_a_resumed_run_is_the_uninterrupted_one, and
    tests/apps/vision/test_devices.py, test_a_run_on_two_devices_resumes_in_mid_epoch.
    """

    def on_load_checkpoint(self, trainer: Trainer, module: Any, checkpoint: State) -> None:
        """Restore the loops, once only, and drop the loader if there is one."""
        if trainer.state.fn != TrainerFn.FITTING or "loops" not in checkpoint:
            return
        loop = trainer.fit_loop
        loop.load_state_dict(checkpoint.pop("loops")["fit_loop"])
        epochs: Any = loop.epoch_progress.current
        if epochs.processed == epochs.ready:
            loop._restarting = loop.epoch_loop.restarting = False
        loop._combined_loader = None

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Let schedulers of a metric, which is restored, step at the end of a resumed epoch."""
        trainer.fit_loop._restarting = False


def rewind_loops(checkpoint: State, is_validated: bool) -> None:
    """Rewind the loop counters of a checkpoint to the last finished batch.

    Lightning means to save within the hooks of a batch, before its validation. `is_validated` says
    that one followed the batch: Lightning resumes with a pass without a batch, and counts it as a
    step of the loggers, `_batches_that_stepped`.
    https://github.com/Lightning-AI/pytorch-lightning/issues/20277
    Test: tests/kit/training/test_checkpoints.py, test_a_stop_at_any_batch_changes_nothing.
    """
    loop = checkpoint["loops"]["fit_loop"]
    epochs, batches = loop["epoch_progress"], loop["epoch_loop.batch_progress"]
    is_within_epoch = batches["current"]["ready"] > batches["current"]["started"]
    for tracker in (epochs["total"], epochs["current"], batches["total"], batches["current"]):
        tracker["ready"] = tracker["started"]
    if is_within_epoch:
        batches["is_last_batch"] = False
        loop["epoch_loop.state_dict"]["_batches_that_stepped"] -= is_validated


class UnfuseForClipping(Callback):
    """Unscale gradients before they are clipped instead of inside a fused optimizer.

    Lightning refuses to clip in mixed precision with a fused Adam, which unscales them itself.
    Without its private flag `_step_supports_amp_scaling` they are unscaled before the step.
    https://github.com/Lightning-AI/pytorch-lightning/issues/21435
    Test: tests/kit/training/test_lightning_patches.py, test_fused_adam_clips_in_mixed_precision.
    """

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Remove the flag if gradients are clipped."""
        if trainer.gradient_clip_val:
            for optimizer in trainer.optimizers:
                vars(optimizer).pop("_step_supports_amp_scaling", None)


def validate_untrained(trainer: Any) -> None:
    """Validate the untrained weights as at the end of an epoch, so that they may be the best.

    `ModelCheckpoint` saves nothing at step 0: sets its `_last_global_step_saved`.
    Test: tests/kit/training/test_callbacks.py, test_the_untrained_network_is_scored.
    """
    for callback in trainer.checkpoint_callbacks:
        callback._last_global_step_saved = -1
    trainer.validating = True
    trainer.fit_loop.epoch_loop.val_loop.run()
    trainer.training = True


def is_first_process() -> bool:
    """Return True in the process of rank 0, also before there is a trainer."""
    return getattr(rank_zero_only, "rank", 0) == 0


def drop_chatter() -> None:
    """Drop an advertisement, and notes that only Lightning's own authors can act on."""
    warnings.filterwarnings("ignore", ".*LeafSpec|.*callbacks used to create the checkpoint")
    for name in ("utilities.rank_zero", "trainer.connectors.checkpoint_connector"):
        logging.getLogger(f"lightning.pytorch.{name}").addFilter(
            lambda record: not re.search("litlogger|litmodels|`weights_only`", record.getMessage())
        )


@cache
def prefer_int_in_unions() -> None:
    """Let a number that fits int and float be an int, whatever was imported before.

    jsonargparse tries the types of a union in the order of typing's cache: `limit_test_batches: 1`
    would be one batch in one process, and in another 1.0, all of them. And it would save the text
    of a union with Callable as `Unable to serialize`. Replaces its private
    `sort_subtypes_for_union` and `serialize_as_import_path`; upstream has no issue.
    Test: tests/kit/training/test_lightning_patches.py, test_a_whole_number_is_an_int.
    """
    sort_subtypes = _typehints.sort_subtypes_for_union

    def sort_int_before_float(subtypes: Sequence[Any], *context: Any) -> list[Any]:
        found = list(sort_subtypes(subtypes, *context))
        if int in found and float in found:
            first, last = sorted((found.index(int), found.index(float)))
            found[first], found[last] = int, float
        return found

    _typehints.sort_subtypes_for_union = sort_int_before_float
    save = _typehints.serialize_as_import_path
    _typehints.serialize_as_import_path = lambda x: x if isinstance(x, str) else save(x)


@cache
def remember_options() -> None:
    """Let a parser remember its options by their names: it parses in three quarters of the time.

    jsonargparse searches all options, some 150, for every key. Replaces its private
    `find_action_and_subcommand`; upstream has no issue. Test: test_an_option_may_be_added.
    """
    find_option = _subcommands.find_action_and_subcommand

    def find_once(parser: Any, name: str, exclude: Any = None) -> Any:
        known = vars(parser).setdefault("_known_options", {})
        if (key := (name, exclude, len(parser._actions))) not in known:
            known[key] = find_option(parser, name, exclude)
        return known[key]

    for module in (_core, _subcommands):
        vars(module)["find_action_and_subcommand"] = find_once
