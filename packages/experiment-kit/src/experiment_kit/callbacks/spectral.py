"""Watch a model smooth, or not: spectra, ratios and coefficients while it trains."""

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from attention_core import spectral
from attention_core.operators import ConstantOperator
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from experiment_kit.callbacks.figures import by_depth, by_frequency
from experiment_kit.callbacks.watching import evaluated, gathered, hooked
from experiment_kit.runs import write_atomically

Measures = dict[str, Any]


class Layered(Protocol):
    """What a LightningModule offers to be watched: its layers, and which tokens are real.

    The first part of its batches has the tokens on axis 1. Batches whose parts do not all go by
    samples have a method `first(count)`.
    """

    def layers(self) -> Sequence[nn.Module]:
        """The embedding, then each block: modules that put out tokens (B, N, D), perhaps first.

        What is in none of them, such as the decoder behind an encoder, is not watched.
        """

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
        self.kept: Any = []
        self.measured = 0  # the step; gradients may be accumulated over several batches
        self.seconds = 0.0  # spent on it so far

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
        began = time.perf_counter()
        self._observe(trainer, pl_module, figures)
        self.seconds += time.perf_counter() - began

    def _observe(self, trainer: Any, pl_module: Any, figures: bool) -> None:
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
            self.kept = (
                batch.first(few) if hasattr(batch, "first") else [_first(p, few) for p in batch]
            )
        batch = trainer.precision_plugin.convert_input(self.kept)
        return pl_module.transfer_batch_to_device(batch, pl_module.device, 0)


@torch.no_grad()
def observe(model: Any, batch: Any) -> Measures:
    """Measure a `Layered` module on one batch, in eval mode, leaving its mode as it was.

    A layer that is used several times counts each time. Of a decoder that goes token by token,
    the steps are left out: one token is neither smooth nor has it frequencies.
    """
    depth: list[dict[str, float]] = []
    responses: list[list[float]] = []
    layers, mask = list(dict.fromkeys(model.layers())), model.token_mask(batch)

    def put_out(_: nn.Module, __: Any, output: Any) -> None:
        x = (output if isinstance(output, Tensor) else output[0]).flatten(1, -2).float()
        if x.shape[1] > 1 and (mask is None or mask.shape == x.shape[:2]):
            depth.append(_smoothness(x, mask))

    def filtered(filter: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        # one map at a time: all of them together may not fit
        if 1 < inputs[1].shape[-2] == output.shape[-2] and not isinstance(
            inputs[0], ConstantOperator
        ):
            responses.append(_response(spectral.matrix(filter.forward, inputs[0]).float()))

    within = {module for layer in layers for module in layer.modules()}
    filters = [m for name, m in model.named_modules() if name.endswith(".filter") and m in within]
    with evaluated(model), hooked(layers, put_out), hooked(filters, filtered):
        model.predict_step(batch, 0)
    with gathered(model):
        found = coefficients(model)
    return {"depth": depth, "response": responses, "coefficients": found}


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


def _first(part: Any, count: int) -> Any:
    few = part[:count]
    return few.clone() if isinstance(few, Tensor) else few


def _smoothness(x: Tensor, mask: Tensor | None) -> dict[str, float]:
    measures = ("hfc_lfc", "token_cosine", "effective_rank")
    if not x.isfinite().all():  # no spectrum; what diverged, the guard of the loss tells
        return dict.fromkeys(measures, math.nan)
    return {name: getattr(spectral, name)(x, mask).mean().item() for name in measures}


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
