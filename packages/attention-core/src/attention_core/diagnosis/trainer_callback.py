"""A callback of transformers' Trainer that diagnoses a model in training."""

from inspect import signature
from typing import Any

import torch
import transformers

from attention_core.diagnosis.diagnose import diagnose
from attention_core.diagnosis.report import Diagnosis


class SmoothingCallback(transformers.TrainerCallback):
    """Diagnose the model at each evaluation of a Trainer, and log it beside the metrics.

    The batch is the first `samples` of the evaluation data. `smoothing/<measure>/layer_<i>` has the
    token cosine and HFC/LFC after each layer, `embedding` those of the first input. `reports` keeps
    the report of each step.

        trainer.add_callback(SmoothingCallback(trainer))
    """

    def __init__(self, trainer: transformers.Trainer, samples: int = 8) -> None:
        self.trainer, self.samples = trainer, samples
        self.reports: dict[int, Diagnosis] = {}

    def on_evaluate(
        self, args: Any, state: Any, control: Any, model: torch.nn.Module, eval_dataloader: Any,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        """Diagnose the first samples of the evaluation data."""
        network = self.trainer.accelerator.unwrap_model(model)
        device = next(network.parameters()).device
        with torch.random.fork_rng(devices=[]):  # a loader draws a seed
            batch = next(iter(eval_dataloader)).items()
        named = signature(network.forward).parameters  # a loss outside of it takes the labels
        inputs = {
            name: x[: self.samples].to(device) if isinstance(x, torch.Tensor) else x
            for name, x in batch
            if "label" not in name or name in named
        }
        report = self.reports[state.global_step] = diagnose(network, inputs, measures="light")
        self.trainer.log({
            f"smoothing/{measure}/{f'layer_{i - 1}' if i else 'embedding'}": value
            for measure in ("token_cosine", "hfc_lfc")
            for i, value in enumerate(report.curve(measure))
        })  # fmt: skip
