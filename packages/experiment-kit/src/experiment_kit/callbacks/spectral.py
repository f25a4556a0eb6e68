"""Watch a model smooth, or not: spectra, ratios and coefficients while it trains."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from attention_core import spectral
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.optim.swa_utils import AveragedModel

from experiment_kit.callbacks.figures import by_depth, by_frequency
from experiment_kit.runs import write_atomically

Measures = dict[str, Any]


class Layered(Protocol):
    """What a LightningModule offers to be watched: its layers, and which tokens are real."""

    def layers(self) -> Sequence[nn.Module]:
        """The embedding, then each block: modules that put out tokens (B, N, D)."""

    def token_mask(self, batch: Any) -> Tensor | None:
        """Which tokens (B, N) of a batch are real; None where all are."""


class SpectralMonitor(Callback):
    """Measure over-smoothing on one fixed validation batch, every n steps and at the end.

    By layer: HFC/LFC, token cosine, effective rank of the tokens, response of the filter's map
    to each frequency, and the filter's coefficients; as scalars, histograms and figures in
    TensorBoard, and the newest of them in `spectral.json`. Figures, the slow part, are drawn at
    every tenth measurement and at the end. 0 steps switches the monitor off.
    """

    def __init__(self, every_n_steps: int = 50, samples: int = 8) -> None:
        if every_n_steps < 0 or samples < 1:
            raise ValueError("spectral: every_n_steps must not be negative, samples at least 1")
        self.every_n_steps, self.samples = every_n_steps, samples
        self.kept: list[Tensor] = []
        self.measured = 0  # the step; gradients may be accumulated over several batches

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure where it is due."""
        step = trainer.global_step
        if self.every_n_steps and step != self.measured and step % self.every_n_steps == 0:
            self.measured = step
            self._measure(trainer, pl_module, figures=step // self.every_n_steps % 10 == 0)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the finished model."""
        if self.every_n_steps:
            self._measure(trainer, pl_module, figures=True)

    def _measure(self, trainer: Any, pl_module: Any, figures: bool) -> None:
        if trainer.fast_dev_run:
            return
        batch = self._batch(trainer, pl_module)
        # on all ranks: where weights are sharded, one alone would wait for the others for ever
        with trainer.precision_plugin.forward_context():
            measures = observe(pl_module, batch)
        if not trainer.is_global_zero:
            return
        _log(trainer, measures)
        if figures:
            _draw(trainer, measures)
        content = json.dumps({"step": trainer.global_step, **measures})
        write_atomically(Path(trainer.default_root_dir) / "spectral.json", content)

    def _batch(self, trainer: Any, pl_module: LightningModule) -> Any:
        if not self.kept:  # once: a loader with workers takes seconds to start
            batch = next(iter(trainer.datamodule.val_dataloader()))
            # the map of a long sequence is large: as many numbers as `samples` maps of 512 tokens
            few = max(1, min(self.samples, self.samples * 512**2 // batch[0].shape[1] ** 2))
            self.kept = [part[:few].clone() for part in batch]
        batch = trainer.precision_plugin.convert_input(self.kept)
        return pl_module.transfer_batch_to_device(batch, pl_module.device, 0)


@torch.no_grad()
def observe(model: Any, batch: Any) -> Measures:
    """Measure a `Layered` module on one batch, in eval mode, leaving its mode as it was."""
    tokens: list[Tensor] = []
    responses: list[list[float]] = []

    def filtered(filter: Any, inputs: tuple[Any, ...], _: Tensor) -> None:
        # one map at a time: all of them together may not fit
        responses.append(_response(spectral.matrix(filter.forward, inputs[0]).float()))

    filters = [module for name, module in model.named_modules() if name.endswith(".filter")]
    training = model.training
    model.eval()
    try:
        with (
            _hooked(model.layers(), lambda *call: tokens.append(call[-1])),
            _hooked(filters, filtered),
        ):
            model.predict_step(batch, 0)
    finally:
        model.train(training)
    mask = model.token_mask(batch)
    with _gathered(model):
        found = coefficients(model)
    return {
        "depth": [_smoothness(x.flatten(1, -2).float(), mask) for x in tokens],
        "response": responses,
        "coefficients": found,
    }


def coefficients(model: nn.Module) -> dict[str, list[float]]:
    """The coefficients of every filter and kernel that has any, by name; AGF's as they act."""
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
def _gathered(model: nn.Module) -> Iterator[None]:
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in sharded:
        module.unshard()
    try:
        yield
    finally:
        for module in sharded:
            module.reshard()


@contextmanager
def _hooked(modules: Sequence[nn.Module], note: Callable[..., None]) -> Iterator[None]:
    handles = [module.register_forward_hook(note) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _smoothness(x: Tensor, mask: Tensor | None) -> dict[str, float]:
    return {
        "hfc_lfc": spectral.hfc_lfc(x, mask).mean().item(),
        "token_cosine": spectral.token_cosine(x, mask).mean().item(),
        "effective_rank": spectral.effective_rank(x, mask).mean().item(),
    }


def _response(H: Tensor) -> list[float]:
    half = H.shape[-1] // 2 + 1
    return spectral.dft_response(H)[..., :half].flatten(0, -2).mean(0).tolist()


def _log(trainer: Any, measures: Measures) -> None:
    board, step = trainer.logger.experiment, trainer.global_step
    for depth, values in enumerate(measures["depth"]):
        for name, value in values.items():
            board.add_scalar(f"spectral/{name}/layer_{depth}", value, step)
    for name, values in measures["coefficients"].items():
        board.add_histogram(f"coefficients/{name}", torch.tensor(values), step)
        for index, value in enumerate(values if len(values) <= 16 else []):
            board.add_scalar(f"coefficients/{name}/{index}", value, step)


def _draw(trainer: Any, measures: Measures) -> None:
    board, step = trainer.logger.experiment, trainer.global_step
    board.add_figure("spectral/tokens_by_depth", by_depth(measures["depth"]), step)
    board.add_figure("spectral/frequency_response", by_frequency(measures["response"]), step)
