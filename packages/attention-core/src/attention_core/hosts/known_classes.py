"""The attention classes of libraries that have one square map, for the generic adapter."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

HEAD_AXIS = -3  # in the queries of most libraries


def _is_square(module: Any) -> bool:
    return True


class KnownClass(NamedTuple):
    """An axis of heads, the rule for which modules have a square map, and a number of heads.

    Axis 0 of queries (B H, N, d) holds batch and heads. `num_heads` is 1 for a class of one head
    that stores no number.
    """

    head_axis: int = HEAD_AXIS
    is_square: Callable[[Any], bool] = _is_square
    num_heads: int | None = None


def _keeps_resolution(module: Any) -> bool:
    strides = {getattr(pool, "stride", (1, 1)) for pool in (module.pool_q, module.pool_k)}
    return len(strides) == 1


_ONE_MAP = KnownClass()
_NO_REDUCTION = KnownClass(is_square=lambda module: module.sr is None)
_NO_RATIO = KnownClass(is_square=lambda module: module.sr_ratio == 1)
# timm: classes that call scaled_dot_product_attention
_TIMM_CALLS = {
    "layers.attention.AttentionRope": _ONE_MAP,
    "layers.attention2d.MultiQueryAttention2d": KnownClass(
        is_square=lambda module: module.kv_stride == 1 and not module.has_query_strides
    ),
    "models.beit.Attention": _ONE_MAP,
    "models.cpubone.ConvAttention": _ONE_MAP,
    "models.davit.WindowAttention": _ONE_MAP,
    "models.eva.EvaAttention": _ONE_MAP,
    "models.fastvit.Attention": _ONE_MAP,
    "models.gemma4_vit.Gemma4Attention": _ONE_MAP,
    "models.hiera.MaskUnitAttention": KnownClass(1, lambda module: module.q_stride == 1),
    "models.hieradet_sam2.MultiScaleAttention": KnownClass(
        is_square=lambda module: module.q_pool is None
    ),
    "models.lowformer.ConvAttention": _ONE_MAP,
    "models.maxxvit.Attention2d": _ONE_MAP,
    "models.maxxvit.AttentionCl": _ONE_MAP,
    "models.metaformer.Attention": _ONE_MAP,
    "models.nest.Attention": KnownClass(1),
    "models.nextvit.EfficientAttention": _NO_REDUCTION,
    "models.pvt_v2.Attention": _NO_REDUCTION,
    "models.tiny_vit.Attention": _ONE_MAP,
    "models.twins.GlobalSubSampleAttn": _NO_REDUCTION,
    "models.twins.LocallyGroupedAttn": _ONE_MAP,
    "models.vision_transformer.ParallelScalingBlock": _ONE_MAP,
    "models.vision_transformer_relpos.RelPosAttention": _ONE_MAP,
    "models.vision_transformer_sam.Attention": KnownClass(0),
    "models.visformer.Attention": _ONE_MAP,
    "models.volo.Attention": _ONE_MAP,
}
# timm: classes that form their map; it is over channels in XCA, CrossCovarianceAttn and
# ChannelAttention
_TIMM_FORMS = {
    "layers.bottleneck_attn.BottleneckAttn": _ONE_MAP,
    "models.davit.ChannelAttention": _ONE_MAP,
    "models.edgenext.CrossCovarianceAttn": _ONE_MAP,
    "models.efficientformer.Attention": _ONE_MAP,
    "models.efficientformer_v2.Attention2d": _ONE_MAP,
    "models.gcvit.WindowAttentionGlobal": KnownClass(
        is_square=lambda module: not module.use_global  # queries of another grid
    ),
    "models.iformer.SHMA": KnownClass(num_heads=1),
    "models.levit.Attention": _ONE_MAP,
    "models.mvitv2.MultiScaleAttention": KnownClass(is_square=_keeps_resolution),
    "models.swin_transformer_v2.WindowAttention": _ONE_MAP,
    "models.swin_transformer_v2_cr.WindowMultiHeadAttention": _ONE_MAP,
    "models.tnt.Attention": _ONE_MAP,
    "models.xcit.XCA": _ONE_MAP,
}
# torchvision and torchaudio, whose other attention is torch's
_TORCHVISION = {
    "torchvision.models.maxvit.RelativePositionalMultiHeadAttention": _ONE_MAP,
    "torchvision.models.swin_transformer.ShiftedWindowAttention": _ONE_MAP,
    "torchvision.models.swin_transformer.ShiftedWindowAttentionV2": _ONE_MAP,
}
_TORCHAUDIO = {"torchaudio.models.wav2vec2.components.SelfAttention": _ONE_MAP}
# transformers: classes that do not call the attention function named by their config
_TRANSFORMERS = {
    "bark.modeling_bark.BarkSelfAttention": _ONE_MAP,
    "blip.modeling_blip.BlipAttention": _ONE_MAP,
    "blip.modeling_blip_text.BlipTextSelfAttention": _ONE_MAP,
    "bloom.modeling_bloom.BloomAttention": _ONE_MAP,
    "bros.modeling_bros.BrosSelfAttention": _ONE_MAP,
    "canine.modeling_canine.CanineSelfAttention": _ONE_MAP,
    "clvp.modeling_clvp.ClvpSelfAttention": _ONE_MAP,
    "codegen.modeling_codegen.CodeGenAttention": _ONE_MAP,
    "convbert.modeling_convbert.ConvBertSelfAttention": _ONE_MAP,
    "cpmant.modeling_cpmant.CpmAntAttention": _ONE_MAP,
    "ctrl.modeling_ctrl.MultiHeadAttention": _ONE_MAP,
    "dab_detr.modeling_dab_detr.DabDetrAttention": _ONE_MAP,
    "dab_detr.modeling_dab_detr.DetrAttention": _ONE_MAP,
    "data2vec.modeling_data2vec_vision.Data2VecVisionSdpaSelfAttention": _ONE_MAP,
    "data2vec.modeling_data2vec_vision.Data2VecVisionSelfAttention": _ONE_MAP,
    "deberta.modeling_deberta.DisentangledSelfAttention": _ONE_MAP,
    "deberta_v2.modeling_deberta_v2.DisentangledSelfAttention": _ONE_MAP,
    "donut.modeling_donut_swin.DonutSwinSelfAttention": _ONE_MAP,
    "falcon.modeling_falcon.FalconAttention": _ONE_MAP,
    "fastspeech2_conformer.modeling_fastspeech2_conformer.FastSpeech2ConformerAttention": _ONE_MAP,
    "flaubert.modeling_flaubert.MultiHeadAttention": _ONE_MAP,
    "flava.modeling_flava.FlavaSelfAttention": _ONE_MAP,
    "fsmt.modeling_fsmt.Attention": _ONE_MAP,
    "glpn.modeling_glpn.GLPNEfficientSelfAttention": _NO_RATIO,
    "gpt_neo.modeling_gpt_neo.GPTNeoSelfAttention": _ONE_MAP,
    "gpt_neox_japanese.modeling_gpt_neox_japanese.GPTNeoXJapaneseAttention": _ONE_MAP,
    "gptj.modeling_gptj.GPTJAttention": _ONE_MAP,
    "groupvit.modeling_groupvit.GroupViTAttention": _ONE_MAP,
    "hiera.modeling_hiera.HieraMaskUnitAttention": KnownClass(
        1, lambda module: module.query_stride == 1
    ),
    "ibert.modeling_ibert.IBertSelfAttention": _ONE_MAP,
    "imagegpt.modeling_imagegpt.ImageGPTAttention": _ONE_MAP,
    "layoutlmv3.modeling_layoutlmv3.LayoutLMv3SelfAttention": _ONE_MAP,
    "led.modeling_led.LEDDecoderAttention": _ONE_MAP,
    "levit.modeling_levit.LevitAttention": _ONE_MAP,
    "lxmert.modeling_lxmert.LxmertAttention": _ONE_MAP,
    "luke.modeling_luke.LukeSelfAttention": _ONE_MAP,
    "megatron_bert.modeling_megatron_bert.MegatronBertSelfAttention": _ONE_MAP,
    "mgp_str.modeling_mgp_str.MgpstrAttention": _ONE_MAP,
    "mobilebert.modeling_mobilebert.MobileBertSelfAttention": _ONE_MAP,
    "mobilevit.modeling_mobilevit.MobileViTSelfAttention": _ONE_MAP,
    "mpnet.modeling_mpnet.MPNetSelfAttention": _ONE_MAP,
    "mpt.modeling_mpt.MptAttention": _ONE_MAP,
    "mvp.modeling_mvp.MvpAttention": _ONE_MAP,
    "openai.modeling_openai.Attention": _ONE_MAP,
    "perceiver.modeling_perceiver.PerceiverSelfAttention": KnownClass(
        is_square=lambda module: isinstance(module.layernorm2, nn.Identity)
    ),
    "pvt.modeling_pvt.PvtEfficientSelfAttention": KnownClass(
        is_square=lambda module: module.sequences_reduction_ratio == 1
    ),
    "pvt_v2.modeling_pvt_v2.PvtV2SelfAttention": KnownClass(
        is_square=lambda module: module.spatial_reduction_ratio == 1 and not module.linear_attention
    ),
    "rembert.modeling_rembert.RemBertSelfAttention": _ONE_MAP,
    "roformer.modeling_roformer.RoFormerSelfAttention": _ONE_MAP,
    "sam.modeling_sam.SamVisionAttention": _ONE_MAP,
    "sam.modeling_sam.SamVisionSdpaAttention": _ONE_MAP,
    "sam_hq.modeling_sam_hq.SamHQVisionAttention": _ONE_MAP,
    "sam_hq.modeling_sam_hq.SamHQVisionSdpaAttention": _ONE_MAP,
    "seggpt.modeling_seggpt.SegGptAttention": _ONE_MAP,
    "sew_d.modeling_sew_d.DisentangledSelfAttention": _ONE_MAP,
    "speecht5.modeling_speecht5.SpeechT5Attention": _ONE_MAP,
    "squeezebert.modeling_squeezebert.SqueezeBertSelfAttention": _ONE_MAP,
    "swin2sr.modeling_swin2sr.Swin2SRSelfAttention": _ONE_MAP,
    "swinv2.modeling_swinv2.Swinv2SelfAttention": _ONE_MAP,
    "table_transformer.modeling_table_transformer.TableTransformerAttention": _ONE_MAP,
    "tapas.modeling_tapas.TapasSelfAttention": _ONE_MAP,
    "timesformer.modeling_timesformer.TimesformerSelfAttention": _ONE_MAP,
    "tvp.modeling_tvp.TvpAttention": _ONE_MAP,
    "vilt.modeling_vilt.ViltSelfAttention": _ONE_MAP,
    "visual_bert.modeling_visual_bert.VisualBertSelfAttention": _ONE_MAP,
    "vitdet.modeling_vitdet.VitDetAttention": _ONE_MAP,
    "xglm.modeling_xglm.XGLMAttention": _ONE_MAP,
    "xlm.modeling_xlm.MultiHeadAttention": _ONE_MAP,
    "xlnet.modeling_xlnet.XLNetRelativeAttention": _ONE_MAP,
}
CALLING_CLASSES = {f"timm.{path}": known for path, known in _TIMM_CALLS.items()} | _TORCHAUDIO
FORMING_CLASSES = {f"timm.{path}": known for path, known in _TIMM_FORMS.items()} | _TORCHVISION
TRANSFORMERS_CLASSES = {
    f"transformers.models.{path}": known for path, known in _TRANSFORMERS.items()
}
# what AttentionInterface replaced in transformers 5
_OLDER = """
albert.modeling_albert.AlbertAttention albert.modeling_albert.AlbertSdpaAttention
bert.modeling_bert.BertSdpaSelfAttention bert.modeling_bert.BertSelfAttention
camembert.modeling_camembert.CamembertSdpaSelfAttention
camembert.modeling_camembert.CamembertSelfAttention
distilbert.modeling_distilbert.DistilBertSdpaAttention
distilbert.modeling_distilbert.MultiHeadSelfAttention
roberta.modeling_roberta.RobertaSdpaSelfAttention roberta.modeling_roberta.RobertaSelfAttention
t5.modeling_t5.T5Attention
xlm_roberta.modeling_xlm_roberta.XLMRobertaSdpaSelfAttention
xlm_roberta.modeling_xlm_roberta.XLMRobertaSelfAttention
"""
OLDER_CLASSES = {f"transformers.models.{path}": _ONE_MAP for path in _OLDER.split()}
KNOWN_CLASSES = CALLING_CLASSES | FORMING_CLASSES | TRANSFORMERS_CLASSES | OLDER_CLASSES
