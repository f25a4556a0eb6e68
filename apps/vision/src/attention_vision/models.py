"""timm's vision transformers, built for a size and a number of classes, and their parts by depth.

Shapes: images (B, 3, S, S) -> logits (B, C); tokens (B, N, D), of Swin (B, H, W, D).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

import timm
import torch
from timm.models.cait import LayerScaleBlockClassAttn
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn


@dataclass(frozen=True)
class ClassToken:
    """Where the class token of a ViT enters: late, after so many blocks (all where null).

    `blocks` of class attention follow, in which it alone is updated, as in CaiT.

    Source: sections 3.2 and 4 of https://arxiv.org/abs/2103.17239
    """

    after: int | None = None
    blocks: int = 0


def build(
    backbone: str,
    num_classes: int,
    image_size: int,
    options: Mapping[str, Any] | None = None,
    dropout: float = 0.0,
    drop_path: float = 0.0,
    class_token: ClassToken | None = None,
) -> Any:
    """A model of timm's; `options` are its own, such as depth or patch_size.

    `dropout` acts after the positions, the attention's projection and each map of the MLP, as in
    DeiT; `drop_path` is the stochastic depth of the last block.

    Raises ValueError for an unknown backbone, a rate outside of [0, 1), options that timm does
    not know, and a class token that the backbone has no place for.

    >>> model = build("deit_tiny_patch16_224", 10, 32, {"depth": 2})
    >>> model(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """
    for name, rate in {"dropout": dropout, "drop_path": drop_path}.items():
        if not 0 <= rate < 1:
            raise ValueError(f"model.{name} must be in [0, 1), got {rate}")
    if not timm.is_model(backbone):
        family = backbone.partition("_")[0]
        like = timm.list_models(f"{family}_*") or get_close_matches(backbone, timm.list_models())
        raise ValueError(f"timm has no model {backbone!r}; it has {', '.join(like) or 'others'}")
    settings: dict[str, Any] = {"num_classes": num_classes, "img_size": image_size}
    settings |= {"proj_drop_rate": dropout, "drop_path_rate": drop_path}
    if not backbone.startswith("swin"):  # which has no dropout of its own after the positions
        settings["pos_drop_rate"] = dropout
    if taken := sorted(settings.keys() & (options or {})):
        raise ValueError(f"model.options may not name {taken[0]}, which other arguments say")
    try:
        model: Any = timm.create_model(backbone, **settings, **(options or {}))
    except (TypeError, AssertionError, ArithmeticError, RuntimeError, OSError) as error:
        raise ValueError(f"model.options of {backbone}: {error}") from error
    _check(model, image_size)
    return model if class_token is None else _late(model, class_token)


def _check(model: Any, image_size: int) -> None:
    patches = getattr(model, "patch_embed", None)
    height, width = getattr(patches, "patch_size", (1, 1))
    pads = getattr(patches, "dynamic_img_pad", False)  # timm drops what fills no patch, else
    if (image_size % height or image_size % width) and not pads:
        raise ValueError(
            f"patches of {height} by {width} do not divide images of {image_size}: choose another "
            "data.image_size or patch_size of model.options"
        )
    if not hasattr(model, "blocks") and not hasattr(model, "layers"):
        raise ValueError(f"{type(model).__name__} has no stack of blocks whose attention is known")


def blocks(model: Any) -> list[nn.Module]:
    """The blocks of self-attention in order of depth; those of class attention are left out.

    >>> len(blocks(build("deit_tiny_patch16_224", 10, 32, {"depth": 2})))
    2
    """
    if hasattr(model, "blocks"):
        return list(model.blocks)
    return [block for stage in model.layers for block in stage.blocks]


def embedding(model: Any) -> nn.Module:
    """The module that puts out the tokens before the first block."""
    return next(
        getattr(model, name)
        for name in ("norm_pre", "pos_drop", "patch_embed")
        if hasattr(model, name)
    )


class LateClassViT(VisionTransformer):
    """A ViT whose class token enters after the block `late`, and may then have blocks to itself.

    >>> model = build("deit_tiny_patch16_224", 10, 32, {"depth": 2}, class_token=ClassToken(1))
    >>> model(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """

    late: int
    class_blocks: nn.ModuleList

    def forward_features(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Patches alone, then the class token with them, then the class token on its own."""
        if attn_mask is not None or is_causal:
            raise ValueError("a ViT with a late class token takes no attention mask")
        tokens = self.norm_pre(self._pos_embed(self.patch_embed(x)))
        token, x = tokens[:, :1], tokens[:, 1:]
        for depth, block in enumerate(self.blocks):
            x = block(torch.cat([token, x], 1) if depth == self.late else x)
        if self.late < len(self.blocks):
            token, x = x[:, :1], x[:, 1:]
        for block in self.class_blocks:
            token = block(x, token)
        return self.norm(torch.cat([token, x], 1))


def _late(model: Any, chosen: ClassToken) -> nn.Module:
    kind: Any = type(model)
    if kind is not VisionTransformer or model.num_prefix_tokens != 1:
        raise ValueError(f"model.class_token: {kind.__name__} has no class token to move")
    depth = len(model.blocks)
    late = depth if chosen.after is None else chosen.after
    if not 0 < late <= depth or (late == depth and not chosen.blocks):
        raise ValueError(
            f"model.class_token.after must be from 1 to {depth - 1} of the {depth} blocks, or null "
            f"with blocks of class attention to follow, got {chosen.after}"
        )
    heads = model.blocks[0].attn.num_heads
    norm: Any = partial(nn.LayerNorm, eps=1e-6)
    model.class_blocks = nn.ModuleList(
        LayerScaleBlockClassAttn(
            model.embed_dim, heads, qkv_bias=True, norm_layer=norm, init_values=1e-5
        )
        for _ in range(chosen.blocks)
    )
    model.class_blocks.apply(_initialise)
    model.late, model.__class__ = late, LateClassViT
    return model


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):  # as timm initialises the blocks before them
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
