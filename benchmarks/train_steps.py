"""Training steps of whole models, and their time and peak memory beside the plain model's."""

from collections.abc import Callable, Iterator, Mapping

import torch
from attention_core import GFSA, attach
from experiment_kit.training.efficiency import peak_allocated_mib
from measure import Step, compare_with_aim, format_noise, measure_steps
from torch import Tensor, nn


def build_gfsa_methods(published: type[GFSA]) -> dict[str, Callable[[nn.Module], nn.Module]]:
    """Build the functions that give a model GFSA: in all layers, in even ones, and as published."""
    return {
        "plain": lambda model: model,
        "GFSA": lambda model: attach(model, GFSA),
        "GFSA, even layers": lambda model: attach(model, GFSA, "1::2"),
        "GFSA, published": lambda model: attach(model, published),
    }


def build_train_step(
    compute_loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer, device: str
) -> Step:
    """Build a step of an optimizer; the loss is computed in bfloat16 on a GPU."""

    def run_step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = compute_loss()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run_step


def set_wK(model: nn.Module) -> None:
    """Set wK of every GFSA to 0.1: at its initial value 0 the filter would only apply A."""
    for filter in (m for m in model.modules() if isinstance(m, GFSA)):
        nn.init.constant_(filter.wK, 0.1)


def compare_steps(
    steps: Mapping[str, Step],
    device: str,
    seconds: float,
    max_time: Mapping[str, float | None],
    max_peak: Mapping[str, float | None],
) -> Iterator[list[str]]:
    """Yield name, ms, time / plain, peak MiB, peak / plain and noise of each method's step."""
    timings = measure_steps(steps, device, seconds, min_rounds=3)
    peaks = {name: peak_allocated_mib(step, device) for name, step in steps.items()}
    for name, timing in timings.items():
        yield [
            *(name, f"{1e3 * timing.best:.0f}"),
            compare_with_aim(timing.best / timings["plain"].best, max_time.get(name)),
            f"{peaks[name]:.0f}",
            compare_with_aim(peaks[name] / peaks["plain"], max_peak.get(name)),
            format_noise({name: timing}),
        ]
