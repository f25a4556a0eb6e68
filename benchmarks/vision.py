"""Whole vision transformers of timm with each method: images a second, time, memory."""

from collections.abc import Callable
from typing import NamedTuple

import timm
import torch
import torch.nn.functional as F
from attention_core import AGF, GFSA, AttnScale, CenteredAttention, ContraNorm, FeatScale, attach
from experiment_kit.training.efficiency import peak_allocated_mib
from measure import Step, compare_with_aim, format_noise, measure_steps
from published import PublishedGFSA
from rich.table import Table
from torch import Tensor, nn
from train_steps import build_train_step

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


def _make_contranorm(dim: int) -> nn.Module:
    return ContraNorm(dim, scale=0.1, norm=False)


METHODS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda model: model,
    "GFSA": lambda model: attach(model, GFSA),
    "GFSA, published": lambda model: attach(model, PublishedGFSA),
    "AttnScale": lambda model: attach(model, AttnScale),
    "FeatScale": lambda model: attach(model, tokens=FeatScale),
    "ContraNorm": lambda model: attach(model, tokens=_make_contranorm, position="norms"),
    "centered": lambda model: attach(model, CenteredAttention),
    "AGF": lambda model: attach(model, kernel=AGF),
}


def build_model(method: str, spec: Model, device: str, small: dict[str, int]) -> nn.Module:
    torch.manual_seed(0)
    return METHODS[method](timm.create_model(spec.name, **small)).to(device)


def draw_images(spec: Model, device: str, small: dict[str, int]) -> Tensor:
    size = small.get("img_size", 224)
    return torch.randn(spec.batch, 3, size, size, device=device)


def build_model_step(method: str, spec: Model, device: str, small: dict[str, int]) -> Step:
    """Build a training step with AdamW."""
    model = build_model(method, spec, device, small).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = draw_images(spec, device, small)
    y = torch.randint(small.get("num_classes", 1000), (spec.batch,), device=device)
    return build_train_step(lambda: F.cross_entropy(model(x), y), optimizer, device)


def build_eval_step(method: str, spec: Model, device: str, small: dict[str, int]) -> Step:
    """Build the evaluation of one batch."""
    model = build_model(method, spec, device, small).eval()
    x = draw_images(spec, device, small)

    @torch.inference_mode()
    def step() -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            return model(x)

    return step


def list_methods(spec: Model, small: dict[str, int]) -> list[str]:
    """List the methods that this model can take: AGF, for example, has no talking heads."""
    names = []
    for name in METHODS:
        try:
            build_model(name, spec, "meta", small)
        except (ValueError, TypeError) as error:
            print(f"{spec.name}, {name}: {error}")
        else:
            names.append(name)
    return names


def measure_speed(
    title: str, spec: Model, device: str, small: dict[str, int], seconds: float
) -> Table:
    """Measure every method beside the plain model."""
    names, place = list_methods(spec, small), (spec, device, small)
    training = measure_steps(
        {name: build_model_step(name, *place) for name in names}, device, seconds, 3
    )
    forward = measure_steps(
        {name: build_eval_step(name, *place) for name in names}, device, seconds / 2, 3
    )
    table = Table(
        *("method", "forward images/s", "forward / plain", "training images/s"),
        *("training / plain", "noise"),
        title=f"{title}, batch {spec.batch}; aims of a training step on DeiT: GFSA <= 1.20, "
        "AttnScale and FeatScale <= 1.05",
    )
    aims = TIME if title.startswith("DeiT") else {}
    for name in names:
        table.add_row(
            *(name, f"{spec.batch / forward[name].best:.1f}"),
            compare_with_aim(forward[name].best / forward["plain"].best),
            f"{spec.batch / training[name].best:.1f}",
            compare_with_aim(training[name].best / training["plain"].best, aims.get(name)),
            format_noise({name: training[name]}),
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
        peaks = {}
        for name in list_methods(spec, small):
            step = build_model_step(name, spec, device, small)
            step()  # creates the optimizer's state
            peaks[name] = peak_allocated_mib(step, device)
            del step  # frees its memory before the next model is built
        ratios = {
            name: compare_with_aim(peak / peaks["plain"], MEMORY if name in TIME else None)
            for name, peak in peaks.items()
        }
        cells = (ratios.get(name, "-") for name in METHODS if name != "plain")
        table.add_row(title, f"{peaks['plain']:.0f}", *cells)
    return table


def build_tables(device: str, quick: bool) -> list[Table]:
    """Measure the speed of each model, then memory; quick runs a shallow DeiT on small images."""
    models, small, seconds = MODELS[device], {}, 150.0
    if quick:
        models = {"DeiT, toy": Model("deit_tiny_patch16_224", 2)}
        small = {"depth": 1, "embed_dim": 24, "num_heads": 3, "img_size": 32, "num_classes": 5}
        seconds = 0.2
    times = [measure_speed(title, spec, device, small, seconds) for title, spec in models.items()]
    return [*times, measure_memory(models, device, small)]
