"""The encoder of the Long Range Arena with each method: seconds of 1,000 steps, and peak memory."""

from functools import partial
from pathlib import Path
from pydoc import locate
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import yaml
from attention_core import SelfAttention, Softmax, penalties
from attention_sequence.models import NetworkSize, TokenClassifier
from attention_sequence.module import bind_length
from experiment_kit.diagnostics.efficiency import peak_allocated_mib
from measure import Step, clock, interleave, judge, noise, timed
from rich.table import Table
from torch import Tensor, nn

CONFIGS = Path(__file__).parents[1] / "apps/sequence/configs/method"
WIDTH, HEADS, HIDDEN, DEPTH = 64, 2, 128, 2
FASTER, LEANER, LIKE_PRIMAL = 3.0, 1.3, 1.15


class Case(NamedTuple):
    """A task of the arena, whose settings methods take, and the sequences of a step."""

    task: str
    length: int
    batch: int


CASES = {
    "cpu": [Case("image", 1024, 4), Case("listops", 2048, 2), Case("text_4k", 4096, 1)],
    "cuda": [Case("image", 1024, 128), Case("listops", 2048, 32), Case("text_4k", 4096, 32)],
}


class Unfused(nn.Module):
    """Softmax attention by its (N, N) map."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()

    def forward(self, q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return Softmax(q, k, mask).dense()


LINEAR = {  # in the length of a sequence
    "LinearAttention": "linear_transformer",
    "Performer": "performer",
    "Linformer": "linformer",
    "Nystromformer": "nystromformer",
    "Reformer": "reformer",
    "Longformer": "longformer",
    "Cosformer": "cosformer",
    "Flowformer": "flowformer",
    "Primalformer": "primalformer",
    "Singularformer": "singularformer",
}
CONFIGURED = {**LINEAR, "YOSO-E": "yoso_e", "SOFT": "soft", "AGF": "agf"}
METHODS = ("softmax", "softmax, unfused", *CONFIGURED)


def kernel(method: str, task: str) -> Any:
    """The kernel of a method as the app's overlays set it for a task; None is fused softmax."""
    if method not in CONFIGURED:
        return Unfused if "unfused" in method else None
    path = CONFIGS / f"{CONFIGURED[method]}.yaml"
    said = yaml.safe_load(path.read_text())["model"]["kernel"]
    settings, tuned = said["init_args"], path.with_suffix(".per_dataset.yaml")
    if tuned.exists():
        settings |= yaml.safe_load(tuned.read_text())["model.kernel.init_args"].get(task, {})
    return partial(locate(said["class_path"]), **settings)


def training(method: str, case: Case, device: str) -> Step:
    """Forward, backward and a step of AdamW, penalties of kernels included; bfloat16 on a GPU."""
    torch.manual_seed(0)
    made = bind_length(kernel(method, case.task), case.length)
    size = NetworkSize(512, 10, case.length, WIDTH, HIDDEN, DEPTH, dropout=0.1)
    model = TokenClassifier(size, lambda layer: SelfAttention(WIDTH, HEADS, kernel=made))
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(1, 512, (case.batch, case.length), device=device)
    mask, label = torch.ones_like(ids).bool(), torch.randint(10, (case.batch,), device=device)

    def step() -> None:
        with penalties(model) as terms, torch.autocast(device, torch.bfloat16, device == "cuda"):
            loss = F.cross_entropy(model(ids, mask), label)
        (loss + torch.stack(terms).mean() if terms else loss).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def speed(case: Case, device: str, seconds: float) -> Table:
    """A training step of each method beside the others'."""
    steps = {name: training(name, case, device) for name in METHODS}
    took = interleave({n: timed(step, clock(device)) for n, step in steps.items()}, seconds, 3)
    best = {name: timing.best for name, timing in took.items()}
    peaks = {name: peak_allocated_mib(step, device) for name, step in steps.items()}
    leanest = min(peaks[name] for name in LINEAR)
    table = Table(
        *("method", "s/1K steps", "softmax / method", "step / Primalformer's"),
        *("peak MiB", "peak / best linear", "noise"),
        title=f"{case.length} tokens, batch {case.batch}; aims of AGF: peak <= {LEANER} of the "
        f"best linear baseline's, step <= {LIKE_PRIMAL} of Primalformer's"
        + (f", {FASTER:.0f} times as fast as fused softmax" if _long(case, device) else ""),
    )
    for name in METHODS:
        agf = name == "AGF"
        table.add_row(
            *(name, f"{1e3 * best[name]:.1f}"),
            judge(
                best["softmax"] / best[name], least=FASTER if agf and _long(case, device) else None
            ),
            judge(best[name] / best["Primalformer"], LIKE_PRIMAL if agf else None),
            f"{peaks[name]:.1f}",
            judge(peaks[name] / leanest, LEANER if agf else None),
            noise({name: took[name]}),
        )
    return table


def _long(case: Case, device: str) -> bool:
    return case.length >= 4096 and device == "cpu"


def tables(device: str, quick: bool) -> list[Table]:
    """One table a length; quick runs short sequences."""
    cases = [Case("image", 256, 1)] if quick else CASES[device]
    return [speed(case, device, 0.2 if quick else 60.0) for case in cases]
