"""Monitor over-smoothing during training: spectra, ratios and coefficients of every layer."""

import inspect
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from attention_core.diagnosis.batches import ModelInputs
from attention_core.diagnosis.diagnose import check_wrapped, prepare_model
from attention_core.diagnosis.report import Diagnosis
from attention_core.diagnosis.run import PlannedRun, measure_run, plan_run
from jsonargparse.typing import NonNegativeInt, PositiveInt
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils._pytree import tree_leaves, tree_map

from experiment_kit.errors import find_own_line
from experiment_kit.run_files import write_atomically
from experiment_kit.training import spectral_logs
from experiment_kit.training.lightning_patches import State

TOKEN_MEASURES = ("hfc_lfc", "hfc_share", "token_cosine", "signed_token_cosine", "effective_rank")
_COMPILERS = ("torch.jit", "torch._dynamo")  # they show no functions


@dataclass(eq=False)
class RepeatedCall(ModelInputs):
    """One call inside a model that each measurement repeats, and its mask of valid tokens.

    Its few samples are never cut into slices.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mask: Tensor | None = None
    num_samples: int = 1

    def __post_init__(self) -> None:
        function = getattr(self.function, "forward", self.function)
        self._names = list(inspect.signature(function).parameters)

    def run(self, model: nn.Module) -> Any:
        """Repeat the call; sharded weights are gathered again for what is measured behind it."""
        output = self.function(*self.args, **self.kwargs)
        with torch._C.DisableTorchFunction():  # it is no part of the model
            for module in list_sharded(model):
                module.unshard()
        return output

    def find_mask(self, is_decoder: bool, shape: tuple[int, int]) -> Tensor | None:
        """Return the mask, or that of the arguments if there is none, where it has the shape."""
        if self.mask is None:
            return super().find_mask(is_decoder, shape)
        return self.mask if self.mask.shape == shape and not is_decoder else None


class SpectralMonitor(Callback):
    """Measure over-smoothing on one fixed batch, every n steps, later more rarely, and at the end.

    By layer: HFC/LFC, token cosine, effective rank of the tokens, response of the filter's map
    to each frequency, and the filter's coefficients; as scalars in every logger, and the newest of
    them in `spectral.json` of the trainer's `default_root_dir`. Figures for TensorBoard, which take
    longer, are drawn at every tenth measurement and at the end.

    It takes any LightningModule that `diagnose` takes, without changing it:

        Trainer(callbacks=[SpectralMonitor()])

    A module that defines `predict_step` says by it how it takes a validation batch, whose first
    part has the tokens on axis 1; a batch whose parts do not all have the samples on axis 0 has a
    method `first(count)`. The valid tokens are those of `token_mask`, if there is one. Of other
    modules, and behind a `predict_step` that fails, the first call of their largest part is
    repeated. Of an encoder and a decoder, the encoder is measured.

    Args:
        every_n_steps: Steps between two measurements; 0 disables the monitor.
        samples: Samples of the batch.
    """

    def __init__(self, every_n_steps: NonNegativeInt = 50, samples: PositiveInt = 8) -> None:
        self.every_n_steps, self.samples = every_n_steps, samples
        self.call: RepeatedCall | None = None
        self.planned: PlannedRun | None = None  # once a fit
        self.newest: dict[str, Any] = {"step": 0}
        self.untimed_seconds = 0.0  # in all measurements; EpochTimer subtracts them

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Keep the first call of the network if the module does not say how it takes a batch."""
        self.call = self.planned = None
        self.is_captured = not is_overridden("predict_step", module)
        if self.every_n_steps and self.is_captured:
            self._capture_call(module)

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        """Measure every n steps."""
        step = trainer.global_step
        # once a step: gradients may be accumulated over several batches
        if self.every_n_steps and step != self.newest["step"]:
            period = choose_period(step, self.every_n_steps)
            if step % period == 0:
                self._measure_model(trainer, module, figures=step // period % 10 == 0)

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Measure the trained model, or draw its measurement, and print a summary."""
        if self.every_n_steps and self.newest["step"] != trainer.global_step:
            self._measure_model(trainer, module, figures=True)
        elif not self.newest.get("figures", True):
            self.newest["figures"] = True
            self._record_measures(trainer, scalars=False)
        measures = self.newest.get("measures", {})
        if trainer.is_global_zero and "verdict" in measures:
            coefficients = spectral_logs.describe_coefficients(measures)
            print(measures["verdict"], coefficients, sep="\n", flush=True)

    def on_save_checkpoint(self, trainer: Trainer, module: Any, checkpoint: State) -> None:
        """Save the measurement of this step, whose scalars a resumed run must log again."""
        if self.newest["step"] == trainer.global_step:
            checkpoint["spectral"] = self.newest

    def on_load_checkpoint(self, trainer: Trainer, module: Any, checkpoint: State) -> None:
        """Log and write the saved measurement again."""
        if trainer.state.fn == TrainerFn.FITTING and "spectral" in checkpoint:
            self.newest = checkpoint["spectral"]
            self._record_measures(trainer)

    def _measure_model(self, trainer: Any, module: Any, figures: bool) -> None:
        if trainer.fast_dev_run:
            return
        began = time.perf_counter()
        # training draws the same numbers with and without a monitor
        with isolate_rng():
            for part in list_sharded(module):
                part.unshard()
            measures = spectral_logs.collect_coefficients(module)
            # on all ranks: with sharded weights, a single rank would wait for the others forever
            with trainer.precision_plugin.forward_context():
                measures |= self._measure_layers(trainer, module)
            for part in list_sharded(module):
                part.reshard()
        self.newest = {"step": trainer.global_step, "figures": figures, "measures": measures}
        self._record_measures(trainer)
        self.untimed_seconds += time.perf_counter() - began

    def _measure_layers(self, trainer: Any, module: Any) -> spectral_logs.Measures:
        try:
            check_wrapped(module, _COMPILERS)
            if self.call is None:
                self.call = self._load_call(trainer, module)
            with prepare_model(module), torch.no_grad():
                self.planned = self.planned or plan_run(module, self.call)
                layers = self.planned.plan.layers
                chosen = [i for i, x in enumerate(layers) if x.stack == layers[0].stack]
                report = measure_run(self.planned, chosen, None, is_full=False)
        except Exception as error:  # whatever data and steps of a user are, training goes on
            if self.planned is None and self.call and not self.is_captured:  # takes other batches
                self.call, self.is_captured = None, True  # once: a call of the training is repeated
                self._capture_call(module)
            self.planned, text = None, f"{error}{find_own_line(error)}"
            rank_zero_warn(f"the spectral monitor measures no tokens: {text}")
            return {"depth": [], "response": [], "attention": []}
        return list_measures(report)

    def _record_measures(self, trainer: Any, scalars: bool = True) -> None:
        if trainer.is_global_zero:
            folder = Path(trainer.default_root_dir).absolute()
            step, figures, measures = (self.newest[k] for k in ("step", "figures", "measures"))
            for logger in trainer.loggers * scalars:
                logger.log_metrics(spectral_logs.name_scalars(measures), step)
            if figures:
                spectral_logs.draw_measures(trainer.loggers, step, measures, folder)
            write_atomically(folder / "spectral.json", json.dumps({"step": step, **measures}))

    def _capture_call(self, module: nn.Module) -> None:
        """Keep the first call of the module itself, or else of its part with most to train."""

        def keep_call(network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            for handle in handles:
                handle.remove()
            given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.ndim]
            size, count = (len(given[0]), self._count_samples(given[0])) if given else (0, 0)
            if any(getattr(part, "batch_first", True) is False for part in network.modules()):
                count = size  # the first axis may be the tokens

            def crop(value: Any) -> Any:
                is_part = isinstance(value, Tensor) and value.ndim > 0 and len(value) == size
                return value[:count].detach().clone() if is_part else value

            self.call = RepeatedCall(network, *tree_map(crop, (args, kwargs)))

        def count_trained(part: nn.Module) -> int:
            return sum(weight.numel() for weight in part.parameters() if weight.requires_grad)

        parts = module, *sorted(module.children(), key=count_trained)[-1:]
        handles = [x.register_forward_pre_hook(keep_call, with_kwargs=True) for x in parts]

    def _load_call(self, trainer: Any, module: Any) -> RepeatedCall:
        """Return the call of `predict_step` with the first samples of a validation batch."""
        if not is_overridden("predict_step", module):
            text = "the steps do not call the network that holds the attention; define"
            raise ValueError(f"{text} predict_step, which takes a batch")
        loaders = trainer.val_dataloaders or trainer.train_dataloader
        loaders = loaders if trainer.datamodule is None else trainer.datamodule.val_dataloader()
        batch = next(iter(tree_leaves(loaders)[0]))
        first = next(x for x in tree_leaves(batch) if isinstance(x, Tensor) and x.ndim)
        batch = crop_batch(batch, self._count_samples(first))
        batch = trainer.precision_plugin.convert_input(batch)
        batch = module.transfer_batch_to_device(batch, module.device, 0)
        mask = module.token_mask(batch) if hasattr(module, "token_mask") else None
        return RepeatedCall(module.predict_step, (batch, 0), {}, mask)

    def _count_samples(self, x: Tensor) -> int:
        # the maps of long sequences are large: limit them to the size of `samples` maps of 512
        length = x.shape[1] if x.ndim > 1 else 1
        return max(1, min(self.samples, self.samples * 512**2 // length**2))


def list_measures(report: Diagnosis) -> spectral_logs.Measures:
    """Return the measures of a diagnosis that are kept; the responses are means over heads.

    A layer that is used several times is one in `attention`.
    """
    layers = report.layers
    tokens = [layers[0].steps.get("input"), *(layer.output for layer in layers)]
    responses = [torch.tensor(layer.responses) for layer in layers if layer.responses]
    return {
        "depth": [{name: getattr(x, name) for name in TOKEN_MEASURES} for x in tokens if x],
        "response": [response.mean(0).tolist() for response in responses],
        "attention": list(dict.fromkeys(layer.name for layer in layers)),
        "verdict": report.verdict,
    }


def list_sharded(model: nn.Module) -> list[FSDPModule]:
    """List the modules whose weights are sharded."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def choose_period(step: int, every_n_steps: int) -> int:
    """Return the steps between two measurements: from 40 n on, 20 in each doubling of the step."""
    return every_n_steps * 2 ** max(0, (step // (20 * every_n_steps)).bit_length() - 1)


def crop_batch(batch: Any, count: int) -> Any:
    """Return the first samples of a batch."""

    def crop(part: Any) -> Any:
        if isinstance(part, Mapping):
            return {key: crop(x) for key, x in part.items()}
        few = part[:count]
        return few.clone() if isinstance(few, Tensor) else few

    if hasattr(batch, "first"):
        return batch.first(count)
    return crop(batch) if isinstance(batch, Mapping | Tensor) else [crop(part) for part in batch]
