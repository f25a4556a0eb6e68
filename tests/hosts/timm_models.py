"""Small random models of timm, with weights large enough for an output to show a fault."""

import timm
import torch
from torch import Tensor, nn

from tests.hosts.helpers import draw_weights

SIZE = 48  # Swin pads the windows of its second stage
VIT = {"patch_size": 8, "depth": 3}
FAMILIES = {
    "vit": ("vit_tiny_patch16_224", VIT),
    "deit": ("deit_tiny_distilled_patch16_224", VIT),
    "qk_norm": ("vit_tiny_patch16_224", VIT | {"qk_norm": True}),
    "scale_norm": ("vit_tiny_patch16_224", VIT | {"scale_attn_norm": True}),
    "cait": ("cait_xxs24_224", {"depth": 3, "init_values": 0.5}),
    "swin": ("swin_tiny_patch4_window7_224", {"window_size": 4, "depths": (2, 2)}),
}
NUM_LAYERS = {name: 4 if name == "swin" else 3 for name in FAMILIES}


def make_inputs() -> dict[str, Tensor]:
    return {"x": torch.randn(2, 3, SIZE, SIZE)}


def build(family: str = "vit", **options) -> nn.Module:
    name, defaults = FAMILIES[family]
    model = timm.create_model(name, img_size=SIZE, num_classes=5, **defaults | options).eval()
    draw_weights(model, 0.1)
    return model
