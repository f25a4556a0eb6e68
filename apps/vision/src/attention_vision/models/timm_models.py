"""Models of timm, built for an image size and a number of classes; most are transformers.

Shapes: images (B, 3, S, S) -> logits (B, C); tokens (B, N, D), in Swin (B, H, W, D).
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import timm
from attention_core.checks import check_probabilities
from timm.models.densenet import DenseNet
from timm.models.resnet import ResNet
from torch import nn

from attention_vision.models.late_class_token import ClassToken, move_class_token

_CONVOLUTIONAL = ("resnet", "densenet")  # families of the papers' tables without attention


def build_model(
    backbone: str,
    num_classes: int,
    image_size: int,
    model_kwargs: Mapping[str, Any] | None = None,
    dropout: float = 0.0,
    drop_path: float = 0.0,
    class_token: ClassToken | None = None,
) -> Any:
    """Build a model of timm; `model_kwargs` are arguments of timm, such as depth or patch_size.

    `dropout` acts after the position embedding, after the projection of attention and after each
    linear map of the MLP, as in DeiT. `drop_path` is the stochastic depth of the last block.
    ResNets and DenseNets take any image size, and `dropout` before their head.
    """
    check_probabilities("model", dropout=dropout, drop_path=drop_path)
    if not timm.is_model(backbone):
        family = backbone.partition("_")[0]
        like = timm.list_models(f"{family}_*") or get_close_matches(backbone, timm.list_models())
        known = ", ".join(like) or "others"
        raise ValueError(f"model.backbone: timm has no model {backbone!r}; it has {known}")
    settings = _choose_settings(backbone, num_classes, image_size, dropout, drop_path)
    try:
        model: Any = timm.create_model(backbone, **settings, **(model_kwargs or {}))
    except (TypeError, AssertionError, ArithmeticError, RuntimeError, OSError) as error:
        raise ValueError(f"model.model_kwargs of {backbone}: {error}") from error
    if not is_convolutional(model):
        _check_model(model, image_size)
    return model if class_token is None else move_class_token(model, class_token)


def _choose_settings(
    backbone: str, num_classes: int, image_size: int, dropout: float, drop_path: float
) -> dict[str, Any]:
    settings: dict[str, Any] = {"num_classes": num_classes}
    if backbone.startswith(_CONVOLUTIONAL):
        given = {"drop_rate": dropout, "drop_path_rate": drop_path}
        return settings | {name: rate for name, rate in given.items() if rate}
    settings |= {"img_size": image_size, "proj_drop_rate": dropout, "drop_path_rate": drop_path}
    if not backbone.startswith("swin"):  # Swin has no dropout after the position embedding
        settings["pos_drop_rate"] = dropout
    return settings


def is_convolutional(model: Any) -> bool:
    """Return True for a model without attention, as ResNet and DenseNet."""
    return isinstance(model, ResNet | DenseNet)


def _check_model(model: Any, image_size: int) -> None:
    patches = getattr(model, "patch_embed", None)
    height, width = getattr(patches, "patch_size", (1, 1))
    pads = getattr(patches, "dynamic_img_pad", False)  # without it, timm crops what is left over
    if (image_size % height or image_size % width) and not pads:
        text = f"patches of {height} by {width} do not divide images of {image_size}: choose"
        raise ValueError(f"{text} another data.image_size or patch_size of model.model_kwargs")
    if not hasattr(model, "blocks") and not hasattr(model, "layers"):
        raise ValueError(f"{type(model).__name__} has no stack of blocks whose attention is known")


def list_blocks(model: Any) -> list[nn.Module]:
    """List the blocks of self-attention in order of depth, without those of class attention."""
    if is_convolutional(model):
        return []
    if hasattr(model, "blocks"):
        return list(model.blocks)
    return [block for stage in model.layers for block in stage.blocks]
