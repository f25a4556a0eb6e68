"""Weights from a file: timm's, published ones, or those of a run.

`load_network` reads backbone, sizes and mechanism from the weights too.
"""

import re
from collections.abc import Iterable
from functools import partial
from math import isqrt
from pathlib import Path
from typing import Any

import timm
from attention_core import GFSA, AttnScale, FeatScale, Plain, attach
from experiment_kit.app_files import find_config
from experiment_kit.data.download import fetch_hub_files, find_model_files
from experiment_kit.diagnosis.checkpoint_files import PREFIXES, choose_model, read_weights
from experiment_kit.errors import UserError, convert_user_errors
from experiment_kit.launch.overlays import overlay_arguments, read_overlay
from experiment_kit.run_files import warn_once
from timm.models.cait import Cait
from torch import Tensor, nn

from attention_vision.models.timm_models import build_model

METHODS = ("attnscale", "gfsa", "featscale")
_OPTION = "checkpoint"
# the parameters of a mechanism in a block -> its method
_SHOWN = {
    "attn.lamb": "attnscale", "lamb1": "featscale",  # names in the released code
    "attn.filter.omega": "attnscale", "attn.filter.wK": "gfsa", "attn.tokens.s": "featscale",
}  # fmt: skip
_MECHANISMS = {"filter", "kernel", "tokens"}  # modules that a stock checkpoint lacks

# a block's parameters in AttnScale's, FeatScale's and GFSA's released code -> those here
_RELEASED = re.compile(r"(blocks\.\d+\.)(attn\.lamb|lamb1|lamb2)")
_PARAMETERS = {
    "attn.lamb": ("attn.filter.omega", "attn.filter.wK"),
    "lamb1": ("attn.tokens.s",),
    "lamb2": ("attn.tokens.t",),
}
_PATCHES = "patch_embed.proj.weight"


def find_timm_weights(model: str) -> str:
    """Return the file of timm's weights in the hub's cache; UserError where it is not there."""
    try:
        return str(fetch_hub_files(find_model_files(model), cached=True) / "model.safetensors")
    except UserError as error:
        raise UserError(f"no weights of {model} are here: allpass weights {model}") from error


def load_checkpoint(model: nn.Module, path: str, option: str = "model.checkpoint") -> None:
    """Load all weights of a file, but for a mechanism and, by default, a head of other classes.

    The file may be timm's, or of the released code of DeiT, CaiT, AttnScale, GFSA or FeatScale (on
    DeiT with gain 2).
    """
    origin = f"{option} {path}"
    load_weights(model, read_network(path, origin), origin, new_head=option == "model.checkpoint")


def read_network(path: str, origin: str) -> dict[str, Any]:
    """Return the weights of a file without a prefix of their network such as `model.` or `net.`."""
    weights = read_weights(Path(path), origin)
    # a network of patches shows its prefix; that of a run is always `model.`
    shown = {x.removesuffix(_PATCHES) for x in weights if x.endswith(_PATCHES)} or {"model."}
    prefix = choose_model(sorted(shown), PREFIXES, origin)
    found = {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
    return found or weights


def load_weights(model: Any, weights: dict[str, Any], origin: str, new_head: bool = False) -> None:
    """Load weights as `load_checkpoint` does; `origin` names them in a UserError."""
    expected = model.state_dict()
    renamed = {}
    for name, weight in weights.items():
        match = _RELEASED.fullmatch(name)
        names = [match[1] + end for end in _PARAMETERS[match[2]]] if match else []
        renamed[next((own for own in names if own in expected), name)] = weight
    heads = (getattr(model, "pretrained_cfg", {}).get("classifier") or "head") if new_head else ()
    head = {name: weight.shape for name, weight in expected.items() if name.startswith(heads)}
    if any(getattr(renamed.get(name), "shape", None) != shape for name, shape in head.items()):
        warn_once(f"{origin} has other classes or none: the head is new")
        expected = {name: w for name, w in expected.items() if name not in head}
        renamed = {name: w for name, w in renamed.items() if name not in head}
    if reason := _find_mismatch(expected, renamed):
        raise UserError(f"{origin} is of another model: {reason}")
    model.load_state_dict(renamed, strict=False)


def _find_mismatch(expected: dict[str, Tensor], weights: dict[str, Any]) -> str:
    if unexpected := [name for name in weights if name not in expected]:
        return f"it has {unexpected[0]} ({len(unexpected)} such), which this one lacks"
    stock = (name for name in expected if not _MECHANISMS & {*name.split(".")})
    if missing := [name for name in stock if name not in weights]:
        return f"it lacks {missing[0]} ({len(missing)} such)"
    for name, weight in weights.items():
        if weight.shape != expected[name].shape:
            return f"{name} is {tuple(weight.shape)} there and {tuple(expected[name].shape)} here"
    return ""


def load_network(path: str, backbone: str, method: str = "") -> tuple[nn.Module, str]:
    """Load a file of weights into a backbone, with the mechanism that its names show.

    `backbone` is an overlay of this app or a model of timm. Sizes of images and classes are those
    of the weights. AttnScale's and GFSA's released code name their parameter alike, `attn.lamb`:
    in every block it is taken for AttnScale's, in some of them for GFSA's, unless `method` says
    otherwise. FeatScale of the released DeiT code has gain 2.

    Returns the network and a sentence about its weights.
    """
    weights = read_network(path, f"{_OPTION} {path}")
    settings: dict[str, Any] = {"backbone": backbone}
    if find_config("attention_vision", f"backbone/{backbone}"):
        settings = read_overlay("vision", "backbone", backbone)["model"]
    name, kwargs = settings["backbone"], settings.get("model_kwargs")
    with convert_user_errors(ValueError):
        network = build_model(name, *_read_sizes(weights, name), kwargs)
    found = _attach_mechanism(network, weights, backbone, method)
    load_weights(network, weights, f"{_OPTION} {path}")
    return network, f"The weights are those of {path}, on {backbone}{found}."


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
    blocks, parameter = _find_parameter(weights)
    shown = _SHOWN.get(parameter, "")
    gain = 2 if parameter == "lamb1" and not isinstance(network, Cait) else 1  # CaiT adds once
    if method and method not in METHODS:
        raise UserError(f"--method={method}: it is one of {', '.join(METHODS)}")
    if method and (not shown or "featscale" in {shown, method} - {shown}):
        raise UserError(f"--method={method}: the file has parameters of {shown or 'none'}")
    if not shown:
        return ""
    if not method and any(".attn.lamb" in name for name in weights):
        every = {name.split(".")[1] for name in weights if name.startswith("blocks.")}
        method = "attnscale" if len(blocks) == len(every) else "gfsa"
    method = method or shown
    make: dict[str, Any] = {"attnscale": AttnScale}
    text = {"attnscale": "AttnScale", "featscale": f"FeatScale of gain {gain}"}
    if method == "gfsa":
        K = read_gfsa_order(backbone)
        make, text = {"gfsa": partial(GFSA, K=K)}, {"gfsa": f"GFSA of K = {K}"}
    tokens = partial(FeatScale, gain=gain) if method == "featscale" else None
    attach(network, make.get(method, Plain), blocks, tokens=tokens)
    return f" with {text[method]} in {len(blocks)} blocks"


def _find_parameter(weights: Iterable[str]) -> tuple[list[int], str]:
    """Return the blocks that have a parameter of a mechanism, and its name in them."""
    pattern = re.compile(rf"blocks\.(\d+)\.({'|'.join(map(re.escape, _SHOWN))})")
    found = [match for name in weights if (match := pattern.fullmatch(name))]
    return [int(match[1]) for match in found], found[0][2] if found else ""


def read_gfsa_order(backbone: str) -> int:
    """Return K of GFSA, which no weight holds: that of the backbone's table of the paper."""
    overlay = backbone if find_config("attention_vision", f"backbone/{backbone}") else ""
    names = {"data": "imagenet_1k", "backbone": overlay, "method": "gfsa"}
    key = "--model.filter.init_args.K="
    rows = [argument for argument in overlay_arguments("vision", **names) if key in argument]
    return int(rows[-1].removeprefix(key)) if rows else 3
