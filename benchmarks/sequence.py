"""The encoder of the Long Range Arena with each method: time of 1,000 steps, and peak memory."""

from functools import partial
from pydoc import locate
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from attention_core import SelfAttention, Softmax, penalties
from attention_sequence.models import NetworkSize, TokenClassifier
from attention_sequence.module import bind_length
from experiment_kit.launch.overlays import match_rows, read_overlay
from experiment_kit.training.efficiency import peak_allocated_mib
from measure import Step, compare_with_aim, format_noise, measure_steps
from rich.table import Table
from torch import Tensor, nn
from train_steps import build_train_step

DIM, NUM_HEADS, FFN_DIM, NUM_LAYERS = 64, 2, 128, 2
# aims of AGF
MIN_SPEEDUP, MAX_PEAK_RATIO, MAX_TIME_RATIO = 3.0, 1.3, 1.15


class Case(NamedTuple):
    """A task, whose settings the methods use, and length and number of the sequences of a step."""

    task: str
    length: int
    batch: int


CASES = {
    "cpu": [Case("image", 1024, 4), Case("listops", 2048, 2), Case("text_4k", 4096, 1)],
    "cuda": [Case("image", 1024, 128), Case("listops", 2048, 32), Case("text_4k", 4096, 32)],
}


class Unfused(nn.Module):
    """Softmax attention that forms its (N, N) map."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()

    def forward(self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return Softmax(q, k, mask).dense()


# methods whose time is linear in the length, and the names of their overlays
LINEAR = {"LinearAttention": "linear_transformer"} | {
    name: name.lower()
    for name in (
        *("Performer", "Linformer", "Nystromformer", "Reformer", "Longformer"),
        *("Cosformer", "Flowformer", "Primalformer", "Singularformer"),
    )
}
CONFIGURED = {**LINEAR, "YOSO-E": "yoso_e", "SOFT": "soft", "AGF": "agf"}
METHODS = ("softmax", "softmax, unfused", *CONFIGURED)


def build_kernel(method: str, task: str) -> Any:
    """Build the kernel of a method with the app's settings of a task; None is fused softmax."""
    if method not in CONFIGURED:
        return Unfused if "unfused" in method else None
    overlay = read_overlay("sequence", "method", CONFIGURED[method])
    config = overlay["model"]["kernel"]
    settings = dict(config["init_args"])
    for row in match_rows(overlay, {"data": task}):
        settings |= row.get("model.kernel.init_args", {})
    return partial(locate(config["class_path"]), **settings)


def build_task_step(method: str, case: Case, device: str) -> Step:
    """Build a training step with AdamW, with the penalties of kernels."""
    torch.manual_seed(0)
    kernel = bind_length(build_kernel(method, case.task), case.length)
    size = NetworkSize(512, 10, case.length, DIM, FFN_DIM, NUM_LAYERS, dropout=0.1)
    model = TokenClassifier(size, lambda layer: SelfAttention(DIM, NUM_HEADS, kernel=kernel))
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(1, 512, (case.batch, case.length), device=device)
    mask, label = torch.ones_like(ids).bool(), torch.randint(10, (case.batch,), device=device)

    def compute_loss() -> Tensor:
        with penalties(model) as terms:
            loss = F.cross_entropy(model(ids, mask), label)
        return loss + torch.stack(terms).mean() if terms else loss

    return build_train_step(compute_loss, optimizer, device)


def measure_speed(case: Case, device: str, seconds: float) -> Table:
    """Measure a training step of every method."""
    steps = {name: build_task_step(name, case, device) for name in METHODS}
    timings = measure_steps(steps, device, seconds, min_rounds=3)
    best = {name: timing.best for name, timing in timings.items()}
    peaks = {name: peak_allocated_mib(step, device) for name, step in steps.items()}
    best_linear_peak = min(peaks[name] for name in LINEAR)
    is_long = case.length >= 4096 and device == "cpu"
    table = Table(
        *("method", "s/1K steps", "softmax / method", "step / Primalformer's"),
        *("peak MiB", "peak / best linear", "noise"),
        title=f"{case.length} tokens, batch {case.batch}; aims of AGF: "
        f"peak <= {MAX_PEAK_RATIO} of the best linear baseline's, "
        f"step <= {MAX_TIME_RATIO} of Primalformer's"
        + (f", {MIN_SPEEDUP:.0f} times as fast as fused softmax" if is_long else ""),
    )
    agf_aims = {"time": MAX_TIME_RATIO, "peak": MAX_PEAK_RATIO}
    if is_long:
        agf_aims["speedup"] = MIN_SPEEDUP
    for name in METHODS:
        aims = agf_aims if name == "AGF" else {}
        table.add_row(
            *(name, f"{1e3 * best[name]:.1f}"),
            compare_with_aim(best["softmax"] / best[name], least=aims.get("speedup")),
            compare_with_aim(best[name] / best["Primalformer"], aims.get("time")),
            f"{peaks[name]:.1f}",
            compare_with_aim(peaks[name] / best_linear_peak, aims.get("peak")),
            format_noise({name: timings[name]}),
        )
    return table


def build_tables(device: str, quick: bool) -> list[Table]:
    """Measure each length; `quick` runs short sequences."""
    cases = [Case("image", 256, 1)] if quick else CASES[device]
    return [measure_speed(case, device, 0.2 if quick else 60.0) for case in cases]
