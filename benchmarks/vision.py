"""Whole vision transformers of timm with each method: images a second, time, memory."""

from collections.abc import Callable
from typing import NamedTuple

import timm
import torch
import torch.nn.functional as F
from attention_core import AGF, GFSA, AttnScale, CenteredAttention, ContraNorm, FeatScale, attach
from experiment_kit.diagnostics.efficiency import peak_allocated_mib
from measure import Step, clock, interleave, judge, noise, timed
from rich.table import Table
from torch import Tensor, nn

TIME = {"GFSA": 1.20, "AttnScale": 1.05, "FeatScale": 1.05}  # aims, for DeiT alone
MEMORY = 1.10


class Model(NamedTuple):
    """A model of timm at 224 pixels, and its batch size."""

    name: str
    batch: int


MODELS = {
    "cpu": {
        "DeiT-S": Model("deit_small_patch16_224", 8),
        "CaiT-XXS24": Model("cait_xxs24_224", 8),
        "Swin-T": Model("swin_tiny_patch4_window7_224", 8),
    },
    "cuda": {
        "DeiT-S": Model("deit_small_patch16_224", 128),
        "CaiT-S24": Model("cait_s24_224", 64),
        "Swin-S": Model("swin_small_patch4_window7_224", 64),
    },
}


class MaterializedGFSA(GFSA):
    """GFSA as published code computes it: (N, N) maps, A^2 among them."""

    def forward(self, A: Tensor, v: Tensor) -> Tensor:
        """https://github.com/jeongwhanchoi/GFSA, which also lays out the identity."""
        w1, wK = self.w1.to(v.dtype).view(-1, 1, 1), self.wK.to(v.dtype).view(-1, 1, 1)
        A = A if isinstance(A, Tensor) else A.dense()
        return (w1 * A + wK * (A + (self.K - 1) * (A @ A - A))) @ v


def _make_contranorm(dim: int) -> nn.Module:
    return ContraNorm(dim, scale=0.1, norm=False)


METHODS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda model: model,
    "GFSA": lambda model: attach(model, GFSA),
    "GFSA, published": lambda model: attach(model, MaterializedGFSA),
    "AttnScale": lambda model: attach(model, AttnScale),
    "FeatScale": lambda model: attach(model, tokens=FeatScale),
    "ContraNorm": lambda model: attach(model, tokens=_make_contranorm, position="norms"),
    "centered": lambda model: attach(model, CenteredAttention),
    "AGF": lambda model: attach(model, kernel=AGF),
}


def build_model(method: str, spec: Model, device: str, small: dict[str, int]) -> nn.Module:
    torch.manual_seed(0)
    return METHODS[method](timm.create_model(spec.name, **small)).to(device)


def build_train_step(
    method: str, spec: Model, batch: int, device: str, small: dict[str, int]
) -> Step:
    """Build a training step with AdamW; bfloat16 on a GPU."""
    model = build_model(method, spec, device, small).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(batch, 3, *_image_size(small), device=device)
    y = torch.randint(small.get("num_classes", 1000), (batch,), device=device)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def build_eval_step(method: str, spec: Model, device: str, small: dict[str, int]) -> Step:
    """Build the evaluation of one batch."""
    model = build_model(method, spec, device, small).eval()
    x = torch.randn(spec.batch, 3, *_image_size(small), device=device)

    @torch.inference_mode()
    def step() -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            return model(x)

    return step


def _image_size(small: dict[str, int]) -> tuple[int, int]:
    return (small.get("img_size", 224),) * 2


def list_methods(spec: Model, small: dict[str, int]) -> list[str]:
    """The methods that have a place in this model (AGF, for one, has no talking heads)."""
    names = []
    for name in METHODS:
        try:
            build_model(name, spec, "meta", small)
        except (ValueError, TypeError) as refused:
            print(f"{spec.name}, {name}: {refused}")
        else:
            names.append(name)
    return names


def measure_speed(
    title: str, spec: Model, device: str, small: dict[str, int], seconds: float
) -> Table:
    """Measure every method beside the plain model."""
    names, watch, place = list_methods(spec, small), clock(device), (device, small)
    trained = interleave(
        {name: timed(build_train_step(name, spec, spec.batch, *place), watch) for name in names},
        seconds,
        3,
    )
    passed = interleave(
        {name: timed(build_eval_step(name, spec, *place), watch) for name in names}, seconds / 2, 3
    )
    table = Table(
        *("method", "forward images/s", "forward / plain", "training images/s"),
        *("training / plain", "noise"),
        title=f"{title}, batch {spec.batch}; aims of a training step on DeiT: GFSA <= 1.20, "
        "AttnScale and FeatScale <= 1.05",
    )
    for name in names:
        table.add_row(
            name,
            f"{spec.batch / passed[name].best:.1f}",
            judge(passed[name].best / passed["plain"].best),
            f"{spec.batch / trained[name].best:.1f}",
            judge(
                trained[name].best / trained["plain"].best,
                TIME.get(name) if title.startswith("DeiT") else None,
            ),
            noise({name: trained[name]}),
        )
    return table


def measure_memory(models: dict[str, Model], device: str, small: dict[str, int]) -> Table:
    """Measure the peak memory of a training step, as a ratio to plain."""
    table = Table(
        *("model", "plain MiB", *(name for name in METHODS if name != "plain")),
        title="Peak memory of a training step over plain's; aim for GFSA, AttnScale and FeatScale "
        "<= 1.10",
    )
    for title, spec in models.items():
        peaks = {
            name: _peak_memory(build_train_step(name, spec, spec.batch, device, small), device)
            for name in list_methods(spec, small)
        }
        ratios = {name: peaks[name] / peaks["plain"] for name in peaks}
        judged = {
            name: judge(ratio, MEMORY if name in TIME else None) for name, ratio in ratios.items()
        }
        row = (judged.get(name, "-") for name in METHODS if name != "plain")
        table.add_row(title, f"{peaks['plain']:.0f}", *row)
    return table


def _peak_memory(step: Step, device: str) -> float:
    step()  # creates the optimizer's state
    return peak_allocated_mib(step, device)


def tables(device: str, quick: bool) -> list[Table]:
    """Measure the speed of each model, then memory; quick runs a shallow DeiT on small images."""
    models, small, seconds = MODELS[device], {}, 150.0
    if quick:
        models = {"DeiT, toy": Model("deit_tiny_patch16_224", 2)}
        small = {"depth": 1, "embed_dim": 24, "num_heads": 3, "img_size": 32, "num_classes": 5}
        seconds = 0.2
    times = [measure_speed(title, spec, device, small, seconds) for title, spec in models.items()]
    return [*times, measure_memory(models, device, small)]
