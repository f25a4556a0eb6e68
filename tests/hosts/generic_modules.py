"""A small module for each class of timm and torchvision that the generic host filters."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from timm import models
from timm.layers import attention, attention2d, bottleneck_attn
from torch import Tensor, nn
from torchaudio.models.wav2vec2 import components
from torchvision.models import maxvit, swin_transformer

from tests.hosts.helpers import draw_weights

TOKENS, IMAGE, MAP, WINDOW = (2, 10, 12), (2, 12, 3, 5), (2, 4, 6, 12), (2, 3)
Modules = dict[Callable[[], nn.Module], tuple[int, ...]]
# a small module for each class, and the shape of its input
CALLING: Modules = {
    partial(attention.AttentionRope, 12, 3): TOKENS,
    partial(attention.AttentionRope, 12, 6, num_kv_heads=2, qkv_fused=False): TOKENS,
    partial(attention2d.MultiQueryAttention2d, 12, num_heads=3): IMAGE,
    partial(models.beit.Attention, 12, 3, window_size=(3, 3)): TOKENS,
    partial(models.cpubone.ConvAttention, 60, att_stride=1): (2, 60, 3, 5),
    partial(models.davit.WindowAttention, 12, (2, 5), 3): TOKENS,
    partial(models.eva.EvaAttention, 12, 3, scale_norm=False): TOKENS,
    partial(models.fastvit.Attention, 12, head_dim=4): IMAGE,
    partial(models.gemma4_vit.Gemma4Attention, 12, 6, 4, num_kv_heads=3): TOKENS,
    partial(models.hiera.MaskUnitAttention, 12, 12, 3): TOKENS,
    partial(models.hiera.MaskUnitAttention, 12, 12, 3, 1, 5, use_mask_unit_attn=True): (2, 15, 12),
    partial(models.hieradet_sam2.MultiScaleAttention, 12, 12, 3): MAP,
    partial(models.lowformer.ConvAttention, 60, att_stride=1): (2, 60, 3, 5),
    partial(models.maxxvit.Attention2d, 12, dim_head=4): IMAGE,
    partial(models.maxxvit.AttentionCl, 12, dim_head=4): MAP,
    partial(models.metaformer.Attention, 12, head_dim=4): TOKENS,
    partial(models.nest.Attention, 12, 3): (2, 5, 7, 12),
    partial(models.nextvit.EfficientAttention, 12, head_dim=4): TOKENS,
    partial(models.tiny_vit.Attention, 12, 4, 3, 1, resolution=(2, 5)): TOKENS,
    partial(models.twins.LocallyGroupedAttn, 12, 3, ws=2): (2, 24, 12),
    partial(models.twins.GlobalSubSampleAttn, 12, 3): TOKENS,
    partial(models.pvt_v2.Attention, 12, 3): TOKENS,
    partial(models.vision_transformer.ParallelScalingBlock, 12, 3): TOKENS,
    partial(models.vision_transformer_relpos.RelPosAttention, 12, 3): TOKENS,
    partial(models.vision_transformer_sam.Attention, 12, 3): MAP,
    partial(models.visformer.Attention, 12, 3): IMAGE,
    partial(models.volo.Attention, 12, 3): MAP,
    partial(components.SelfAttention, 12, 3): TOKENS,
}
FORMING: Modules = {
    partial(bottleneck_attn.BottleneckAttn, 12, feat_size=(3, 5), num_heads=3): IMAGE,
    partial(models.davit.ChannelAttention, 12, 3): TOKENS,
    partial(models.edgenext.CrossCovarianceAttn, 12, 3): TOKENS,
    partial(models.efficientformer.Attention, 12, 4, 3, resolution=3): (2, 9, 12),
    partial(models.efficientformer_v2.Attention2d, 12, 4, 3, resolution=(3, 5)): IMAGE,
    partial(models.gcvit.WindowAttentionGlobal, 12, 3, WINDOW, use_global=False): (4, 6, 12),
    partial(models.iformer.SHMA, 12): IMAGE,
    partial(models.levit.Attention, 12, 4, 3, resolution=3): (2, 9, 12),
    partial(models.levit.Attention, 12, 4, 3, resolution=(3, 5), use_conv=True): IMAGE,
    partial(models.mvitv2.MultiScaleAttention, 12, 12, (3, 3), 3): TOKENS,
    partial(models.swin_transformer_v2.WindowAttention, 12, WINDOW, 3): (4, 6, 12),
    partial(models.swin_transformer_v2_cr.WindowMultiHeadAttention, 12, 3, WINDOW): (4, 6, 12),
    partial(models.tnt.Attention, 12, 12, 3): TOKENS,
    partial(models.xcit.XCA, 12, 3): TOKENS,
    partial(maxvit.RelativePositionalMultiHeadAttention, 12, 4, 4): (2, 5, 4, 12),
    partial(swin_transformer.ShiftedWindowAttention, 12, [2, 3], [1, 1], 3): MAP,
    partial(swin_transformer.ShiftedWindowAttentionV2, 12, [2, 3], [1, 1], 3): MAP,
}
# arguments of a forward beside its input
EXTRA: dict[Any, tuple[Any, ...]] = {
    models.twins.LocallyGroupedAttn: ((4, 6),),
    models.twins.GlobalSubSampleAttn: ((2, 5),),
    models.pvt_v2.Attention: ((2, 5),),
    models.gemma4_vit.Gemma4Attention: tuple(torch.ones(2, 10, 4).double() for _ in range(2)),
    models.mvitv2.MultiScaleAttention: ((3, 3),),
}


class ModuleCase(NamedTuple):
    """A module that is attention itself, and the shape of its input."""

    make: Any
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float64

    @property
    def name(self) -> str:
        return f"{self.make.func.__module__.rpartition('.')[2]}-{self.class_name}"

    @property
    def class_name(self) -> str:
        return self.make.func.__name__

    def build(self) -> nn.Module:
        """Make the module in float64, with weights that are large enough for a fault to show."""
        torch.manual_seed(0)
        module = self.make().double()
        module.eval()  # TinyViT's and LeViT's return None
        draw_weights(module, 0.4, 0)
        return module

    def make_inputs(self) -> dict[str, Tensor]:
        return {"x": torch.randn(self.shape).double().requires_grad_()}

    def run(self, module: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
        torch.manual_seed(0)  # Swin V2 CR drops in a network of its own
        out = module(inputs["x"], *EXTRA.get(self.make.func, ()))
        return [out if isinstance(out, Tensor) else out[0]]


MODULES = [ModuleCase(make, shape) for make, shape in (CALLING | FORMING).items()]
