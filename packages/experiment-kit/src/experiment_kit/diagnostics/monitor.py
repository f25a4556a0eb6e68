"""Monitor over-smoothing during training: spectra, ratios and coefficients of every layer."""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from attention_core import spectral
from attention_core.operators import ConstantOperator
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.optim.swa_utils import AveragedModel

from experiment_kit.diagnostics.plots import MEASURES, plot_depth_profiles, plot_frequency_responses
from experiment_kit.run import write_atomically

Measures = dict[str, Any]


class SpectralMonitor(Callback):
    """Measure over-smoothing on one fixed validation batch, every n steps and at the end.

    By layer: HFC/LFC, token cosine, effective rank of the tokens, response of the filter's map
    to each frequency, and the filter's coefficients; as scalars, histograms and figures in
    TensorBoard, and the newest of them in `spectral.json`. Figures, the slow part, are drawn at
    every tenth measurement and at the end. 0 steps disables the monitor.

    The module offers `monitored_layers`, `token_mask` and `predict_step` as an AttentionModule
    does. The first part of its batches has the tokens on axis 1; a batch whose parts do not all
    have the samples on axis 0 has a method `first(count)`.
    """

    def __init__(self, every_n_steps: int = 50, samples: int = 8) -> None:
        if every_n_steps < 0 or samples < 1:
            raise ValueError("spectral: every_n_steps must not be negative, samples at least 1")
        self.every_n_steps, self.samples = every_n_steps, samples
        self.batch: Any = []
        self.newest: dict[str, Any] = {"step": 0}
        self.untimed_seconds = 0.0  # of all measurements; EpochTimer subtracts them

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure every n steps."""
        step = trainer.global_step
        # once a step: gradients may be accumulated over several batches
        if self.every_n_steps and step != self.newest["step"] and step % self.every_n_steps == 0:
            self._measure(trainer, pl_module, figures=step // self.every_n_steps % 10 == 0)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the trained model."""
        is_measured = self.newest["step"] == trainer.global_step and self.newest["figures"]
        if self.every_n_steps and not is_measured:
            self._measure(trainer, pl_module, figures=True)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the measurement of this step, whose scalars a resumed run hides."""
        if self.newest["step"] == trainer.global_step:
            checkpoint["spectral"] = self.newest

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Log and write it again."""
        if trainer.state.fn == TrainerFn.FITTING and "spectral" in checkpoint:
            self.newest = checkpoint["spectral"]
            self._record(trainer)

    def _measure(self, trainer: Any, pl_module: Any, figures: bool) -> None:
        if trainer.fast_dev_run:
            return
        began = time.perf_counter()
        batch = self._load_batch(trainer, pl_module)
        # on all ranks: with sharded weights, a single rank would wait for the others forever
        with trainer.precision_plugin.forward_context():
            measures = measure_spectra(pl_module, batch)
        self.newest = {"step": trainer.global_step, "figures": figures, "measures": measures}
        self._record(trainer)
        self.untimed_seconds += time.perf_counter() - began

    def _record(self, trainer: Any) -> None:
        if trainer.is_global_zero:
            step, measures = self.newest["step"], self.newest["measures"]
            _log_measures(trainer.logger.experiment, step, measures, self.newest["figures"])
            content = json.dumps({"step": step, **measures})
            write_atomically(Path(trainer.default_root_dir) / "spectral.json", content)

    def _load_batch(self, trainer: Any, pl_module: LightningModule) -> Any:
        if not self.batch:  # once: a loader with workers takes seconds to start
            batch = next(iter(trainer.datamodule.val_dataloader()))
            # the maps of long sequences are large: limit them to the size of `samples` maps of 512
            count = max(1, min(self.samples, self.samples * 512**2 // batch[0].shape[1] ** 2))
            crop = getattr(batch, "first", lambda count: [_crop_samples(p, count) for p in batch])
            self.batch = crop(count)
        batch = trainer.precision_plugin.convert_input(self.batch)
        return pl_module.transfer_batch_to_device(batch, pl_module.device, 0)


@torch.no_grad()
def measure_spectra(model: Any, batch: Any) -> Measures:
    """Measure an AttentionModule on one batch, in eval mode, and restore its mode.

    A layer that is used several times counts each time. The steps of a decoder that generates
    token by token are left out: one token is not smooth and has no frequencies.
    """
    depth: list[dict[str, float]] = []
    responses: list[list[float]] = []
    layers, mask = list(dict.fromkeys(model.monitored_layers())), model.token_mask(batch)

    def measure_tokens(_: nn.Module, __: Any, output: Any) -> None:
        x = (output if isinstance(output, Tensor) else output[0]).flatten(1, -2).float()
        if x.shape[1] > 1 and (mask is None or mask.shape == x.shape[:2]):
            depth.append(_measure_smoothness(x, mask))

    def measure_map(filter: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        # one map at a time: all of them together may not fit into memory
        constant = isinstance(inputs[0], ConstantOperator)
        if 1 < inputs[1].shape[-2] == output.shape[-2] and not constant:
            H = spectral.matrix(filter.forward, inputs[0]).float()  # (B, H, N, N)
            padded = mask is not None and mask.shape == (len(H), H.shape[-1])
            response = spectral.dft_response(H, mask if padded else None)
            response = response[..., : H.shape[-1] // 2 + 1]
            responses.append(response.flatten(0, -2).mean(0).tolist())

    within = {module for layer in layers for module in layer.modules()}
    filters = [m for name, m in model.named_modules() if name.endswith(".filter") and m in within]
    hooks = forward_hooks(layers, measure_tokens), forward_hooks(filters, measure_map)
    with eval_mode(model), hooks[0], hooks[1]:
        model.predict_step(batch, 0)
    with gather_weights(model):
        found = collect_coefficients(model)
    return {"depth": depth, "response": responses, "coefficients": found}


def collect_coefficients(model: nn.Module) -> dict[str, list[float]]:
    """Return the coefficients of every filter, kernel and token mechanism, by name.

    A kernel's are those that it applies (AGF's), and not the parameters behind them.
    """
    found = {}
    averages = [m for m in model.modules() if isinstance(m, AveragedModel)]
    copies = {part for average in averages for part in average.modules()}
    for name, module in model.named_modules():
        if module in copies:
            continue
        if name.endswith(".kernel") and hasattr(module, "coefficients"):
            found[f"{name}.theta"] = module.coefficients().tolist()
        elif name.endswith((".filter", ".tokens")):
            own = {key: w for key, w in module.named_parameters() if w.ndim == 1}
            found |= {f"{name}.{key}": w.detach().tolist() for key, w in own.items()}
    return {name: values for name, values in found.items() if values}


@contextmanager
def gather_weights(model: nn.Module) -> Iterator[None]:
    """Gather sharded weights on every device."""
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in sharded:
        module.unshard()
    try:
        yield
    finally:
        for module in sharded:
            module.reshard()


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Set eval mode, and restore the mode of each module."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def forward_hooks(modules: Sequence[nn.Module], hook: Callable[..., None]) -> Iterator[None]:
    """Call `hook(module, inputs, output)` after each forward pass of the modules."""
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _crop_samples(part: Any, count: int) -> Any:
    few = part[:count]
    return few.clone() if isinstance(few, Tensor) else few


def _measure_smoothness(x: Tensor, mask: Tensor | None) -> dict[str, float]:
    if not x.isfinite().all():  # there is no spectrum; FiniteLoss reports the divergence
        return dict.fromkeys(MEASURES, math.nan)
    return {name: getattr(spectral, name)(x, mask).mean().item() for name in MEASURES}


def _log_measures(board: Any, step: int, measures: Measures, figures: bool) -> None:
    for depth, values in enumerate(measures["depth"]):
        for name, value in values.items():
            board.add_scalar(f"spectral/{name}/layer_{depth}", value, step)
    for name, values in measures["coefficients"].items():
        board.add_histogram(f"coefficients/{name}", torch.tensor(values), step)
        for index, value in enumerate(values if len(values) <= 16 else []):
            board.add_scalar(f"coefficients/{name}/{index}", value, step)
    if figures:
        profile = {name: [layer[name] for layer in measures["depth"]] for name in MEASURES}
        for tag, figure in {
            "tokens_by_depth": plot_depth_profiles({"": profile}),
            "frequency_response": plot_frequency_responses({"filters": measures["response"]}),
        }.items():
            figure.set_facecolor("white")  # TensorBoard may be dark
            board.add_figure(f"spectral/{tag}", figure, step)
