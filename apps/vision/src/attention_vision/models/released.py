"""A network from a file of weights alone: backbone, sizes and mechanism are read from it."""

import re
from collections.abc import Iterable
from functools import partial
from math import isqrt
from typing import Any

import timm
from attention_core import GFSA, AttnScale, FeatScale, Plain, attach
from experiment_kit.app_files import find_config
from experiment_kit.errors import UserError
from experiment_kit.launch.overlays import overlay_arguments, read_overlay
from torch import nn

from attention_vision.models.checkpoint import load_weights, read_weights
from attention_vision.models.timm_models import build_model

METHODS = ("attnscale", "gfsa", "featscale")
# the parameters of a mechanism in a block -> its method and the gain of FeatScale
_PARAMETERS = {
    "attn.lamb": ("attnscale", 1), "lamb1": ("featscale", 2),  # names in the released code
    "attn.filter.omega": ("attnscale", 1), "attn.filter.wK": ("gfsa", 1),
    "attn.tokens.s": ("featscale", 1),
}  # fmt: skip
_OPTION = "checkpoint"


def load_network(path: str, backbone: str, method: str = "") -> tuple[nn.Module, str]:
    """Load a file of weights into a backbone, with the mechanism that its names show.

    `backbone` is an overlay of this app or a model of timm. Sizes of images and classes are those
    of the weights. AttnScale's and GFSA's released code name their parameter alike, `attn.lamb`:
    in every block it is taken for AttnScale's, in some of them for GFSA's, unless `method` says
    otherwise. FeatScale of the released DeiT code has gain 2.

    Returns the network and a sentence about its weights. Raises UserError for a file that is no
    checkpoint or of another backbone, an unknown backbone, and a method that it does not show.
    """
    weights = read_weights(path, _OPTION)
    settings = _read_backbone(backbone)
    name, kwargs = settings["backbone"], settings.get("model_kwargs")
    try:
        network = build_model(name, *_read_sizes(weights, name), kwargs)
    except ValueError as error:
        raise UserError(str(error)) from error
    found = _attach_mechanism(network, weights, backbone, method)
    load_weights(network, weights, f"{_OPTION} {path}")
    return network, f"The weights are those of {path}, on {backbone}{found}."


def _read_backbone(backbone: str) -> dict[str, Any]:
    found = find_config("attention_vision", f"backbone/{backbone}")
    return (
        read_overlay("vision", "backbone", backbone)["model"] if found else {"backbone": backbone}
    )


def _read_sizes(weights: dict[str, Any], name: str) -> tuple[int, int]:
    """Return the number of classes, 0 for none, and the size of images."""
    config: Any = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    classifier = getattr(config, "classifier", None) or "head"
    head = classifier if isinstance(classifier, str) else classifier[0]
    classes = weights.get(f"{head}.weight")
    size = config.input_size[-1] if config else 224
    positions, patches = weights.get("pos_embed"), weights.get("patch_embed.proj.weight")
    if positions is not None and patches is not None:  # one or two tokens more than a square
        size = isqrt(positions.shape[1]) * patches.shape[-1]
    return (0 if classes is None else len(classes)), size


def _attach_mechanism(
    network: nn.Module, weights: dict[str, Any], backbone: str, method: str
) -> str:
    """Attach what the names of the weights show; return it as the end of a sentence."""
    blocks, shown, gain = _find_method(weights)
    if method and method not in METHODS:
        raise UserError(f"--method={method}: it is one of {', '.join(METHODS)}")
    if method and (not shown or "featscale" in {shown, method} - {shown}):
        raise UserError(f"--method={method}: the file has parameters of {shown or 'none'}")
    if not shown:
        return ""
    if not method and any(".attn.lamb" in name for name in weights):
        method = "attnscale" if len(blocks) == _count_blocks(weights) else "gfsa"
    method = method or shown
    make: dict[str, Any] = {"attnscale": AttnScale}
    text = {"attnscale": "AttnScale", "featscale": f"FeatScale of gain {gain}"}
    if method == "gfsa":
        K = read_gfsa_order(backbone)
        make, text = {"gfsa": partial(GFSA, K=K)}, {"gfsa": f"GFSA of K = {K}"}
    tokens = partial(FeatScale, gain=gain) if method == "featscale" else None
    attach(network, make.get(method, Plain), blocks, tokens=tokens)
    return f" with {text[method]} in {len(blocks)} blocks"


def _find_method(weights: Iterable[str]) -> tuple[list[int], str, int]:
    """Return the blocks that have parameters of a mechanism, its method and its gain."""
    pattern = re.compile(rf"blocks\.(\d+)\.({'|'.join(map(re.escape, _PARAMETERS))})")
    found = [match for name in weights if (match := pattern.fullmatch(name))]
    if not found:
        return [], "", 1
    return [int(match[1]) for match in found], *_PARAMETERS[found[0][2]]


def _count_blocks(weights: Iterable[str]) -> int:
    numbers = (re.match(r"blocks\.(\d+)\.", name) for name in weights)
    return len({match[1] for match in numbers if match})


def read_gfsa_order(backbone: str) -> int:
    """Return K of GFSA, which no weight holds: that of the backbone's table of the paper."""
    overlay = backbone if find_config("attention_vision", f"backbone/{backbone}") else ""
    names = {"data": "imagenet_1k", "backbone": overlay, "method": "gfsa"}
    key = "--model.filter.init_args.K="
    rows = [argument for argument in overlay_arguments("vision", **names) if key in argument]
    return int(rows[-1].removeprefix(key)) if rows else 3
