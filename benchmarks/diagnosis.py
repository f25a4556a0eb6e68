"""The diagnosis of models with random weights, in seconds and in forward passes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import timm
import torch
from attention_core import diagnose
from measure import select_clock, time_step
from rich.table import Table
from torch import Tensor, nn
from transformers import GPT2Config, GPT2Model

BATCH, QUICK_BATCH, TEXT_LENGTH = 8, 1, 128
MODELS: dict[str, tuple[Callable[..., nn.Module], dict[str, Any]]] = {  # and what makes each small
    "DeiT-S": (partial(timm.create_model, "deit_small_patch16_224"), {"depth": 2}),
    "Swin-T": (
        partial(timm.create_model, "swin_tiny_patch4_window7_224"),
        {"depths": (1, 1, 1, 1)},
    ),
    "GPT-2": (lambda **small: GPT2Model(GPT2Config(**small)), {"n_layer": 2}),
}


def make_inputs(model: nn.Module, batch: int) -> Tensor:
    if isinstance(model, GPT2Model):
        return torch.randint(model.config.vocab_size, (batch, TEXT_LENGTH))
    return torch.randn(batch, 3, 224, 224)


def build_tables(device: str, quick: bool) -> list[Table]:
    """Measure a pass, the light and the full diagnosis of each model in turn."""
    clock, batch = select_clock(device), QUICK_BATCH if quick else BATCH
    table = Table("model", "pass s", "light s", "full s", "light / pass", "full / pass",
                  title=f"Diagnosis of {batch} samples")  # fmt: skip
    for name, (make, small) in MODELS.items():
        torch.manual_seed(0)
        model = make(**small if quick else {}).eval().to(device)
        x = make_inputs(model, batch).to(device)
        with torch.no_grad():
            once = min(time_step(partial(model, x), clock) for _ in range(3))
        runs = (partial(diagnose, model, x, measures=level) for level in ("light", "full"))
        taken = [time_step(run, clock) for run in runs]
        ratios = (f"{seconds / once:.0f}" for seconds in taken)
        table.add_row(name, *(f"{seconds:.1f}" for seconds in (once, *taken)), *ratios)
    return [table]
