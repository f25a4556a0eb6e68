"""Figures that are drawn from models: their tokens by depth, their maps and coefficients."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attention_core import plots, spectral
from attention_core.diagnosis.batches import ModelInputs
from attention_core.diagnosis.diagnose import prepare_model
from attention_core.plots import Lines
from attention_core.plots.panels import get_line, make_panels
from attention_core.spectral import high_frequency_norm
from attention_core.theory import bound_multi_head_smoothing, bound_power_error
from matplotlib.figure import Figure
from torch import Tensor, nn

from experiment_kit.errors import UserError
from experiment_kit.papers.figures.entries import (
    DrawnModel,
    FigureEntry,
    PanelRuns,
    load_model,
    load_run_model,
)

ORDERS = range(2, 11)  # K
MAX_COLUMNS = 6  # attention maps side by side
PARTS = {  # residual, MLP
    "attention": (False, False),
    "attention, MLP": (False, True),
    "attention, residual": (True, False),
    "attention, residual, MLP": (True, True),
}
_GELU = 1.13  # its Lipschitz constant, rounded up


Panels = dict[str, dict[str, DrawnModel]]  # by title and label


def load_panels(
    found: PanelRuns, names: Sequence[str], backbone: str, trust: Sequence[str] | str = ()
) -> Panels:
    """Load named models into one panel, or else the first seed of the runs of each panel."""
    if names:
        loaded = [load_model(name, backbone, trust) for name in names]
        return {"": {model.label: model for model in loaded}}
    return {
        title: {label: load_run_model(label, seeds[0], trust) for label, seeds in runs.items()}
        for title, runs in found.items()
    }


def _take_models(panels: Panels) -> tuple[dict[str, DrawnModel], DrawnModel, Lines]:
    """Return the models of the first panel, the first of them, and the line of each."""
    models = next(iter(panels.values()))
    lines = {label: get_line(None, [*models], label) for label in models}
    return models, next(iter(models.values())), lines


def draw_smoothing(entry: FigureEntry, panels: Panels, width: float) -> Figure:
    """Draw response, signed cosine, singular values, and the gain at those of the map."""
    measured = {}
    for label, model in _take_models(panels)[0].items():
        last = model.diagnosis.layers[-1].output
        sigma, gains = spectral.singular_response(model.maps[-1].A, model.maps[-1].H)
        measured[label] = {
            "response": torch.tensor(model.diagnosis.layers[-1].responses).mean(0).tolist(),
            "signed_token_cosine": model.diagnosis.curve("signed_token_cosine"),
            "singular_values": last.singular_values if last else [],
            "singular_response": (sigma.mean(0).tolist(), gains.mean(0).tolist()),
        }
    return plots.plot_smoothing(measured, width=width)


def draw_power_error(entry: FigureEntry, panels: Panels, width: float) -> Figure:
    """Draw E_K of the last layer's maps, the printed bound 2K, and the tighter one of `theory`."""
    found: dict[str, Any] = {}
    for title, models in panels.items():
        for label, model in models.items():
            A = model.maps[-1].A.double()
            bounds = [bound_power_error(A, K) for K in ORDERS]
            found[title if title and len(models) == 1 else label] = {
                "bound of the paper, 2K": (ORDERS, [2 * K for K in ORDERS]),
                "tighter bound": (ORDERS, [bound.upper.mean().item() for bound in bounds]),
                "measured": (ORDERS, [bound.measured.mean().item() for bound in bounds]),
            }
    return plots.plot_curves(found, "K", "E_K", width=width)


def draw_head_responses(entry: FigureEntry, panels: Panels, width: float) -> Figure:
    """Draw the response of the first head in some layers, for one sample."""
    maps = _take_models(panels)[1].maps
    wanted = _space_layers(len(maps), 3)  # 4, 8 and 12 of the printed model
    figure, axes = make_panels(len(wanted), width=width, sharey=True)
    for i, axis in zip(wanted, axes, strict=True):
        plots.draw_responses(axis, {"": _transform_map(maps[i - 1].A)[0]})
        axis.set_title(f"layer {i}, head 1")
    return figure


def draw_spectra(entry: FigureEntry, panels: Panels, width: float) -> Figure:
    """Draw the response of every head for one sample."""
    maps = _take_models(panels)[1].maps
    return plots.plot_spectra_grid([_transform_map(layer.H) for layer in maps], width)


def draw_cosines(entry: FigureEntry, panels: Panels, width: float) -> Figure:
    """Draw the cosines of maps, plain and AttnScale, and of tokens, plain and FeatScale."""
    models, _, lines = _take_models(panels)
    upper = {m: model for m, model in models.items() if model.method != "featscale"}
    lower = {m: model for m, model in models.items() if model.method != "attnscale"}
    curves: dict[str, Any] = {
        "|cosine| of columns of the maps": {
            label: (range(1, len(m.maps) + 1), [spectral.map_cosine(x.H).item() for x in m.maps])
            for label, m in upper.items()
        },
        "|cosine| of pairs of tokens": {
            label: model.diagnosis.curve("token_cosine") for label, model in lower.items()
        },
    }
    figure = plots.plot_curves(curves, "layer (0: embedding)", lines=lines, width=width)
    plots.add_legend(figure, models)
    return figure


def draw_coefficients(entry: FigureEntry, panels: Panels, width: float) -> Figure:
    """Draw learned coefficients by layer and head; channels are averaged in groups of a head."""
    _, model, _ = _take_models(panels)
    heads = next((m.num_heads for m in model.network.modules() if hasattr(m, "num_heads")), 1)
    found: dict[str, list[list[float]]] = {name: [] for name in entry.options["names"]}
    for layer in model.diagnosis.layers:
        for name, values in layer.coefficients.items():
            if (key := name.rpartition(".")[2]) in found and len(values) % heads == 0:
                means = torch.tensor(values).unflatten(0, (heads, -1)).mean(1)
                found[key].append(means.tolist())
    if empty := [name for name, layers in found.items() if not layers]:
        methods = " or ".join(entry.groups[0].methods)
        raise UserError(f"{entry.id} draws the coefficient {empty[0]}, which {model.label} lacks: "
                        f"name a run of method {methods}")  # fmt: skip
    return plots.plot_coefficients(found, "learned weight", width=width)


def draw_attention_maps(entry: FigureEntry, panels: Panels, width: float) -> Figure:
    """Draw the maps of the first head in some layers for one sample, pooled by their maximum."""
    models, first, _ = _take_models(panels)
    layers = _space_layers(len(first.maps), MAX_COLUMNS)
    maps = {
        label: {f"layer {i}": model.maps[i - 1].H[0].tolist() for i in layers}
        for label, model in models.items()
    }
    return plots.plot_attention_maps(maps, max(1, min(4, len(first.maps[0].A.mT) // 16)), width)


def draw_depth(entry: FigureEntry, panels: Panels, width: float) -> Figure:
    """Draw a measure of the tokens by depth, a panel for each group of models."""
    measure, is_of_all = entry.options["measure"], entry.options.get("batches") == "all"

    def follow(model: DrawnModel) -> list[float]:
        return model.average_batches(measure) if is_of_all else model.diagnosis.curve(measure)

    curves = {title: {m: follow(x) for m, x in models.items()} for title, models in panels.items()}
    name = {"hfc_share": "|HC X| / |X|", "hfc_lfc": "HFC/LFC of the tokens"}[measure]
    width = min(width, 4.5) if len(panels) == 1 else width
    return plots.plot_curves(curves, "block (0: embedding)", name, width=width)


def draw_intensity(entry: FigureEntry, panels: Panels, width: float) -> Figure:
    """Draw log(|HC X_l| / |X_0|) and its bound for each set of parts of the blocks of a ViT."""
    _, model, _ = _take_models(panels)
    names = ("norm1", "attn", "ls1", "norm2", "mlp", "ls2")
    blocks = [m for m in model.network.modules() if all(hasattr(m, name) for name in names)]
    if not blocks:
        raise UserError(f"{model.label} has no blocks of timm's ViT, whose parts this figure "
                        "removes: name one, as timm:deit_small_patch16_224")  # fmt: skip
    found: list[Tensor] = []
    with torch.no_grad(), prepare_model(model.network):  # which removes the hook
        blocks[0].register_forward_pre_hook(lambda module, given: found.append(given[0]))
        ModelInputs(model.network, model.batch).run(model.network)
    with prepare_model(model.network):
        bounds = {name: trace_intensity(blocks, found[0], *parts) for name, parts in PARTS.items()}
    return plots.plot_bounds(bounds, width)


def _space_layers(count: int, wanted: int) -> list[int]:
    """Return the numbers of at most so many layers, evenly spaced up to the last one."""
    number = min(count, wanted)
    return [round((i + 1) * count / number) for i in range(number)]


def _transform_map(A: Tensor) -> list[list[float]]:
    return spectral.dft_response(A)[..., : A.shape[-1] // 2 + 1].tolist()


@torch.no_grad()
def trace_intensity(
    blocks: list[Any], X: Tensor, residual: bool, mlp: bool
) -> tuple[list[float], list[float]]:
    r"""Return log(|HC X_l| / |X_0|) from l = 0, and the logarithm of its bound from l = 1.

    .. math:: \|\mathrm{HC}[X_l]\|_F \le \gamma_l \|\mathrm{HC}[N X_{l-1}]\|_F

    for attention alone, with N the norm in front of it, and gamma of proposition 4; a residual
    adds |HC X_{l-1}|, and an MLP its Lipschitz constant times |HC N'X'| of its own norm N'. The
    paper's bounds have no norms, which stay here. Shapes: X (B, N, D).

    Source: appendix F.1 and propositions 4 to 6 of https://arxiv.org/abs/2203.05962
    """
    scale, measured, bounds = X.norm(), [high_frequency_norm(X).norm()], []
    for block in blocks:
        output, upper = _bound_attention(block, X)
        if residual:
            output, upper = X + output, measured[-1] + upper
        if mlp:
            inner, weights = block.norm2(output), (block.mlp.fc1.weight, block.mlp.fc2.weight)
            added = block.ls2(block.mlp(inner))
            rate = math.prod(torch.linalg.matrix_norm(W, 2).item() for W in weights) * _GELU
            rate = rate * _largest(block.ls2) * high_frequency_norm(inner).norm()
            # a bound does not carry over the norm: this part starts at what was measured
            upper = upper + rate if residual else rate
            output = output + added if residual else added
        X = output
        measured.append(high_frequency_norm(X).norm())
        bounds.append(upper)
    logs = torch.stack([*measured, *bounds]).div(scale).log().tolist()
    return logs[: len(measured)], logs[len(measured) :]


def _bound_attention(block: Any, X: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output of the attention, and the bound of its high-frequency norm."""
    u, attn = block.norm1(X), block.attn
    output, heads = block.ls1(attn(u)), attn.num_heads
    q, k, _ = attn.qkv(u).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    logits = attn.q_norm(q) @ attn.k_norm(k).mT * q.shape[-1] ** -0.5
    W_V = attn.qkv.weight.chunk(3)[2].unflatten(0, (heads, -1)).mT  # (H, D, d)
    W_O = attn.proj.weight.unflatten(1, (heads, -1)).movedim(1, 0).mT  # (H, d, D)
    gamma = bound_multi_head_smoothing(logits, W_V, W_O, u).upper  # (B,)
    return output, gamma.norm() * _largest(block.ls1)


def _largest(scale: nn.Module) -> float:
    """Return the largest factor of a LayerScale, or of an identity."""
    return max((gamma.abs().max().item() for gamma in scale.parameters()), default=1.0)


MODEL_FIGURES: dict[str, Callable[[FigureEntry, Panels, float], Figure]] = {
    "smoothing": draw_smoothing,
    "power_error": draw_power_error,
    "intensity": draw_intensity,
    "head_responses": draw_head_responses,
    "spectra": draw_spectra,
    "cosines": draw_cosines,
    "coefficients": draw_coefficients,
    "attention_maps": draw_attention_maps,
    "depth": draw_depth,
}
