"""A ViT whose class token enters late, or is updated by class attention alone.

Shapes: images (B, 3, S, S); tokens (B, N, D).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from attention_core.checks import check_ints
from timm.models.cait import LayerScaleBlockClassAttn
from timm.models.vision_transformer import VisionTransformer, init_weights_vit_timm
from torch import Tensor, nn


@dataclass(frozen=True)
class ClassToken:
    """Position of the class token, and blocks of class attention that update it alone, as in CaiT.

    Args:
        after: Block behind which it enters; null is the last one.
        blocks: Blocks of class attention that follow.

    Source: sections 3.2 and 4 of https://arxiv.org/abs/2103.17239
    """

    after: int | None = None
    blocks: int = 0

    def __post_init__(self) -> None:
        check_ints("model.class_token", 0, blocks=self.blocks)


class LateClassViT(VisionTransformer):
    """A ViT whose class token enters after `entry_depth` blocks; `class_blocks` update it alone."""

    entry_depth: int
    class_blocks: nn.ModuleList

    def forward_features(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Encode the patches, then the patches with the class token, then the class token."""
        if attn_mask is not None or is_causal:
            raise ValueError("a ViT with a late class token takes no attention mask")
        tokens = self.norm_pre(self._pos_embed(self.patch_embed(x)))
        token, x = tokens[:, :1], tokens[:, 1:]  # (B, 1, D), (B, N, D)
        for depth, block in enumerate(self.blocks):
            x = block(torch.cat([token, x], 1) if depth == self.entry_depth else x)
        if self.entry_depth < len(self.blocks):
            token, x = x[:, :1], x[:, 1:]
        for block in self.class_blocks:
            token = block(x, token)
        return self.norm(torch.cat([token, x], 1))


def move_class_token(model: Any, position: ClassToken) -> nn.Module:
    """Turn a plain ViT of timm into a `LateClassViT`, in place."""
    kind: Any = type(model)
    if kind is not VisionTransformer or model.num_prefix_tokens != 1:
        raise ValueError(f"model.class_token: {kind.__name__} has no class token to move")
    depth = len(model.blocks)
    entry_depth = depth if position.after is None else position.after
    if not 0 < entry_depth <= depth or (entry_depth == depth and not position.blocks):
        raise ValueError(
            f"model.class_token.after must be from 1 to {depth - 1} of the {depth} blocks, or null "
            f"with blocks of class attention to follow, got {position.after}"
        )
    num_heads = model.blocks[0].attn.num_heads
    norm: Any = partial(nn.LayerNorm, eps=1e-6)
    model.class_blocks = nn.ModuleList(
        LayerScaleBlockClassAttn(
            model.embed_dim, num_heads, qkv_bias=True, norm_layer=norm, init_values=1e-5
        )
        for _ in range(position.blocks)
    )
    model.class_blocks.apply(init_weights_vit_timm)  # as the blocks of self-attention
    model.entry_depth, model.__class__ = entry_depth, LateClassViT
    return model
