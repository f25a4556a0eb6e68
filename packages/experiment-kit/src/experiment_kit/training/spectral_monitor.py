"""Monitor over-smoothing during training: spectra, ratios and coefficients of every layer."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn

from experiment_kit.diagnostics.coefficients import collect_coefficients
from experiment_kit.diagnostics.hooks import find_networks, gather_weights
from experiment_kit.diagnostics.log_measures import log_measures
from experiment_kit.diagnostics.smoothness import (
    NetworkCall,
    measure_spectra,
    overrides_predict_step,
)
from experiment_kit.diagnostics.summary import summarize_smoothing
from experiment_kit.run import write_atomically

_DIGITS = 6  # digits of a number in spectral.json


class SpectralMonitor(Callback):
    """Measure over-smoothing on one fixed batch, every n steps and at the end.

    From 40 n steps on, it measures 20 times in each doubling of the number of steps, so that a long
    run has few measurements.

    By layer: HFC/LFC, token cosine, effective rank of the tokens, response of the filter's map
    to each frequency, and the filter's coefficients; as scalars in every logger, as histograms and
    figures in TensorBoard, and the newest of them in `spectral.json` of the trainer's
    `default_root_dir`. Figures, condition numbers and singular values, which take longer, are
    made at every tenth measurement and at the end. 0 steps disables the monitor.

    It takes any LightningModule with an attention that `attach` knows, without changing it:

        Trainer(callbacks=[SpectralMonitor()])

    An AttentionModule says by `monitored_layers` and `token_mask` what is measured, and by
    `predict_step` how it takes a validation batch, whose first part has the tokens on axis 1; a
    batch whose parts do not all have the samples on axis 0 has a method `first(count)`. Of other
    modules, the first call of the network that holds the attention (in Lightning's sanity check,
    a validation batch) is repeated; its tokens are found by hooks.
    """

    def __init__(self, every_n_steps: int = 50, samples: int = 8) -> None:
        if every_n_steps < 0 or samples < 1:
            raise ValueError("spectral: every_n_steps must not be negative, samples at least 1")
        self.every_n_steps, self.samples = every_n_steps, samples
        self.batch: Any = None
        self.newest: dict[str, Any] = {"step": 0}
        self.start: dict[str, Any] = {}  # the coefficients before the first step
        self.untimed_seconds = 0.0  # in all measurements; EpochTimer subtracts them

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the first call of the network if the module does not say how it takes a batch."""
        if self.every_n_steps and not overrides_predict_step(pl_module):
            self._capture_call(find_networks(pl_module)[:2])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the coefficients: the summary at the end says which of them moved."""
        if self.every_n_steps and not self.start:
            with gather_weights(pl_module):
                self.start = {"coefficients": collect_coefficients(pl_module)}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure every n steps."""
        step = trainer.global_step
        # once a step: gradients may be accumulated over several batches
        if self.every_n_steps and step != self.newest["step"]:
            period = choose_period(step, self.every_n_steps)
            if step % period == 0:
                self._measure(trainer, pl_module, full=step // period % 10 == 0)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the trained model, and print a summary."""
        is_measured = self.newest["step"] == trainer.global_step and self.newest["full"]
        if self.every_n_steps and not is_measured:
            self._measure(trainer, pl_module, full=True)
        if trainer.is_global_zero and "measures" in self.newest:
            for line in summarize_smoothing(self.newest["measures"], self.start):
                print(line, flush=True)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save the measurement of this step, whose scalars a resumed run must log again."""
        checkpoint["spectral_start"] = self.start
        if self.newest["step"] == trainer.global_step:
            checkpoint["spectral"] = self.newest

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Log and write the saved measurement again."""
        if trainer.state.fn != TrainerFn.FITTING:
            return
        self.start = checkpoint.get("spectral_start", {})
        if "spectral" in checkpoint:
            self.newest = checkpoint["spectral"]
            self._record(trainer)

    def _measure(self, trainer: Any, pl_module: Any, full: bool) -> None:
        if trainer.fast_dev_run:
            return
        if self.batch is None and not overrides_predict_step(pl_module):
            rank_zero_warn(
                "the spectral monitor measures nothing: the steps do not call the network that "
                "holds the attention; define predict_step, which takes a batch"
            )
            return
        began = time.perf_counter()
        with isolate_rng():  # training draws the same numbers with and without a monitor
            batch = self._load_batch(trainer, pl_module)
            # on all ranks: with sharded weights, a single rank would wait for the others forever
            with trainer.precision_plugin.forward_context():
                measures = measure_spectra(pl_module, batch, full)
        self.newest = {"step": trainer.global_step, "full": full, "measures": measures}
        self._record(trainer)
        self.untimed_seconds += time.perf_counter() - began

    def _record(self, trainer: Any) -> None:
        if trainer.is_global_zero:
            step, measures = self.newest["step"], self.newest["measures"]
            log_measures(trainer.loggers, step, measures, self.newest["full"])
            content = json.dumps(_round_numbers({"step": step, **measures}))
            write_atomically(Path(trainer.default_root_dir) / "spectral.json", content)

    def _capture_call(self, networks: Sequence[nn.Module]) -> None:
        """Keep the first call of the module itself, or else of the network inside it."""

        def keep(network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            for handle in handles:
                handle.remove()
            call = NetworkCall(network, args, kwargs)
            tokens = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
            self.batch = call.crop_samples(1 if tokens is None else self._count_samples(tokens))

        handles = [m.register_forward_pre_hook(keep, with_kwargs=True) for m in networks]

    def _load_batch(self, trainer: Any, pl_module: LightningModule) -> Any:
        if isinstance(self.batch, NetworkCall):
            return self.batch
        if self.batch is None:  # once: a loader with workers takes seconds to start
            batch = next(iter(_find_val_loader(trainer)))
            first = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]
            self.batch = _crop_batch(batch, self._count_samples(first))
        batch = trainer.precision_plugin.convert_input(self.batch)
        return pl_module.transfer_batch_to_device(batch, pl_module.device, 0)

    def _count_samples(self, x: Tensor) -> int:
        # the maps of long sequences are large: limit them to the size of `samples` maps of 512
        length = x.shape[1] if x.ndim > 1 else 1
        return max(1, min(self.samples, self.samples * 512**2 // length**2))


def choose_period(step: int, every_n_steps: int) -> int:
    """Return the steps between two measurements: a function of the step, as runs are resumed.

    >>> [choose_period(step, 50) for step in (50, 1999, 2000, 3999, 4000, 100_000)]
    [50, 50, 100, 100, 200, 3200]
    """
    doublings = (step // (20 * every_n_steps)).bit_length() - 1
    return every_n_steps * 2 ** max(0, doublings)


def _find_val_loader(trainer: Any) -> Any:
    if trainer.datamodule is not None:
        return trainer.datamodule.val_dataloader()
    loaders = trainer.val_dataloaders or trainer.train_dataloader
    return loaders[0] if isinstance(loaders, list | tuple) else loaders


def _crop_batch(batch: Any, count: int) -> Any:
    def crop(part: Any) -> Any:
        few = part[:count]
        return few.clone() if isinstance(few, Tensor) else few

    if hasattr(batch, "first"):
        return batch.first(count)
    if isinstance(batch, Mapping):
        return {key: crop(part) for key, part in batch.items()}
    return [crop(part) for part in batch]


def _round_numbers(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _round_numbers(part) for key, part in value.items()}
    return [_round_numbers(part) for part in value] if isinstance(value, list) else value
