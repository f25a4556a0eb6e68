"""The attention classes of libraries that have one square map, for the generic adapter."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import nn

HEAD_AXIS = -3  # in the queries of most libraries


class KnownClass(NamedTuple):
    """An axis of heads (0 in queries (B H, N, d)), a rule for square maps, a number not stored."""

    head_axis: int = HEAD_AXIS
    is_square: Callable[[Any], bool] = lambda module: True
    num_heads: int | None = None


_NO_REDUCTION = KnownClass(is_square=lambda module: module.sr is None)
# timm; the map is over channels in XCA, CrossCovarianceAttn and ChannelAttention
_TIMM = """
layers.attention.AttentionRope layers.bottleneck_attn.BottleneckAttn models.beit.Attention
models.cpubone.ConvAttention models.davit.ChannelAttention models.davit.WindowAttention
models.edgenext.CrossCovarianceAttn models.efficientformer.Attention
models.efficientformer_v2.Attention2d models.eva.EvaAttention models.fastvit.Attention
models.gemma4_vit.Gemma4Attention models.levit.Attention models.lowformer.ConvAttention
models.maxxvit.Attention2d models.maxxvit.AttentionCl models.metaformer.Attention
models.swin_transformer_v2.WindowAttention models.swin_transformer_v2_cr.WindowMultiHeadAttention
models.tiny_vit.Attention models.tnt.Attention models.twins.LocallyGroupedAttn
models.visformer.Attention models.vision_transformer.ParallelScalingBlock
models.vision_transformer_relpos.RelPosAttention models.volo.Attention models.xcit.XCA
"""
_OTHER_TIMM = {
    "layers.attention2d.MultiQueryAttention2d": KnownClass(
        is_square=lambda module: module.kv_stride == 1 and not module.has_query_strides
    ),
    "models.gcvit.WindowAttentionGlobal": KnownClass(
        is_square=lambda module: not module.use_global  # queries of another grid
    ),
    "models.hiera.MaskUnitAttention": KnownClass(1, lambda module: module.q_stride == 1),
    "models.hieradet_sam2.MultiScaleAttention": KnownClass(
        is_square=lambda module: module.q_pool is None
    ),
    "models.iformer.SHMA": KnownClass(num_heads=1),
    "models.mvitv2.MultiScaleAttention": KnownClass(
        is_square=lambda m: len({getattr(p, "stride", (1, 1)) for p in (m.pool_q, m.pool_k)}) == 1
    ),
    "models.nest.Attention": KnownClass(1),
    "models.nextvit.EfficientAttention": _NO_REDUCTION,
    "models.pvt_v2.Attention": _NO_REDUCTION,
    "models.twins.GlobalSubSampleAttn": _NO_REDUCTION,
    "models.vision_transformer_sam.Attention": KnownClass(0),
}
# torchvision and torchaudio, whose other attention is torch's
_TORCHVISION = """
maxvit.RelativePositionalMultiHeadAttention swin_transformer.ShiftedWindowAttention
swin_transformer.ShiftedWindowAttentionV2
"""
# transformers: classes that do not call the attention function named by their config; the module
# of bark.BarkSelfAttention is bark.modeling_bark
_TRANSFORMERS = """
bark.BarkSelfAttention blip.BlipAttention blip.modeling_blip_text.BlipTextSelfAttention
bloom.BloomAttention bros.BrosSelfAttention canine.CanineSelfAttention clvp.ClvpSelfAttention
codegen.CodeGenAttention convbert.ConvBertSelfAttention cpmant.CpmAntAttention
ctrl.MultiHeadAttention dab_detr.DabDetrAttention dab_detr.DetrAttention
data2vec.modeling_data2vec_vision.Data2VecVisionSdpaSelfAttention
data2vec.modeling_data2vec_vision.Data2VecVisionSelfAttention deberta.DisentangledSelfAttention
deberta_v2.DisentangledSelfAttention donut.modeling_donut_swin.DonutSwinSelfAttention
falcon.FalconAttention fastspeech2_conformer.FastSpeech2ConformerAttention
flaubert.MultiHeadAttention flava.FlavaSelfAttention fsmt.Attention gpt_neo.GPTNeoSelfAttention
gpt_neox_japanese.GPTNeoXJapaneseAttention gptj.GPTJAttention groupvit.GroupViTAttention
ibert.IBertSelfAttention imagegpt.ImageGPTAttention layoutlmv3.LayoutLMv3SelfAttention
led.LEDDecoderAttention levit.LevitAttention lxmert.LxmertAttention luke.LukeSelfAttention
megatron_bert.MegatronBertSelfAttention mgp_str.MgpstrAttention mobilebert.MobileBertSelfAttention
mobilevit.MobileViTSelfAttention mpnet.MPNetSelfAttention mpt.MptAttention mvp.MvpAttention
openai.Attention rembert.RemBertSelfAttention roformer.RoFormerSelfAttention sam.SamVisionAttention
sam.SamVisionSdpaAttention sam_hq.SamHQVisionAttention sam_hq.SamHQVisionSdpaAttention
seggpt.SegGptAttention sew_d.DisentangledSelfAttention speecht5.SpeechT5Attention
squeezebert.SqueezeBertSelfAttention swin2sr.Swin2SRSelfAttention swinv2.Swinv2SelfAttention
table_transformer.TableTransformerAttention tapas.TapasSelfAttention
timesformer.TimesformerSelfAttention tvp.TvpAttention vilt.ViltSelfAttention
visual_bert.VisualBertSelfAttention vitdet.VitDetAttention xglm.XGLMAttention xlm.MultiHeadAttention
xlnet.XLNetRelativeAttention
"""
_OTHER_TRANSFORMERS = {
    "glpn.GLPNEfficientSelfAttention": KnownClass(is_square=lambda module: module.sr_ratio == 1),
    "hiera.HieraMaskUnitAttention": KnownClass(1, lambda module: module.query_stride == 1),
    "perceiver.PerceiverSelfAttention": KnownClass(
        is_square=lambda module: isinstance(module.layernorm2, nn.Identity)
    ),
    "pvt.PvtEfficientSelfAttention": KnownClass(
        is_square=lambda module: module.sequences_reduction_ratio == 1
    ),
    "pvt_v2.PvtV2SelfAttention": KnownClass(
        is_square=lambda module: module.spatial_reduction_ratio == 1 and not module.linear_attention
    ),
}
# what AttentionInterface replaced in transformers 5
_OLDER = """
albert.AlbertAttention albert.AlbertSdpaAttention bert.BertSdpaSelfAttention bert.BertSelfAttention
camembert.CamembertSdpaSelfAttention camembert.CamembertSelfAttention
distilbert.DistilBertSdpaAttention distilbert.MultiHeadSelfAttention
roberta.RobertaSdpaSelfAttention roberta.RobertaSelfAttention t5.T5Attention
xlm_roberta.XLMRobertaSdpaSelfAttention xlm_roberta.XLMRobertaSelfAttention
"""


# calling classes of tokens (B, N, C) without a bias, whose values are the last rows of `qkv`
KERNEL_CLASSES = ("timm.layers.attention.AttentionRope", "timm.models.eva.EvaAttention")


def _list_classes(home: str, names: str, others: Mapping[str, KnownClass]) -> dict[str, KnownClass]:
    """Return known classes by their import paths; those of `names` have one square map."""
    found = {}
    for name, known in {**dict.fromkeys(names.split(), KnownClass()), **others}.items():
        model, *modules, made = name.split(".")
        modules = modules or ([f"modeling_{model}"] if home.startswith("transformers") else [])
        found[".".join([home, model, *modules, made])] = known
    return found


TRANSFORMERS_CLASSES = _list_classes("transformers.models", _TRANSFORMERS, _OTHER_TRANSFORMERS)
OLDER_CLASSES = _list_classes("transformers.models", _OLDER, {})
KNOWN_CLASSES = {
    **_list_classes("timm", _TIMM, _OTHER_TIMM),
    **_list_classes("torchaudio.models", "wav2vec2.components.SelfAttention", {}),
    **_list_classes("torchvision.models", _TORCHVISION, {}),
    **TRANSFORMERS_CLASSES,
    **OLDER_CLASSES,
}
