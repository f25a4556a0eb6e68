"""Tiny random models of transformers whose attention forms its map itself, one of each class."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import transformers as hf
from torch import Tensor, nn
from transformers.models.clvp.modeling_clvp import ClvpEncoder
from transformers.models.fastspeech2_conformer.modeling_fastspeech2_conformer import (
    FastSpeech2ConformerEncoder,
)
from transformers.models.seggpt.modeling_seggpt import SegGptEncoder
from transformers.models.sew_d.modeling_sew_d import SEWDTransformerEncoder
from transformers.models.speecht5.modeling_speecht5 import SpeechT5EncoderWithoutPrenet
from transformers.models.tvp.modeling_tvp import TvpEncoder

from tests.hosts.helpers import draw_weights
from tests.hosts.transformers.models import BART, BERT, ENDS, GPT2, VOCAB, WAV2VEC2, WIDE

Inputs = dict[str, Tensor]
N = 9
BERT24 = BERT | {"hidden_size": 24, "embedding_size": 24}
GPT24 = GPT2 | {"n_embd": 24, "rotary_dim": 4}
IMAGE24 = WIDE | {"image_size": 16, "patch_size": 4}
SWIN = {"image_size": 16, "patch_size": 2, "embed_dim": 12, "window_size": 4}
SWIN |= {"depths": (2, 1), "num_heads": (3, 3)}
XLM = ENDS | {"emb_dim": 24, "n_layers": 2, "n_heads": 3, "max_position_embeddings": 40}
STAGES = {"depths": [1, 1], "num_encoder_blocks": 2, "hidden_sizes": [12, 24]}
STAGES |= {"num_attention_heads": [3, 3], "mlp_ratios": [1, 1], "strides": [4, 2]}
STAGES |= {"patch_sizes": [4, 2], "image_size": 16}
CPM = {"hidden_size": 24, "num_attention_heads": 3, "dim_head": 8, "dim_ff": 20}
CPM |= {"num_hidden_layers": 2, "prompt_types": 4, "prompt_length": 2, "segment_types": 4}
RESNET = hf.ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic")
DETR = {"backbone_config": RESNET, "num_queries": 5, "encoder_layers": 1, "decoder_layers": 2}
DETR |= {"encoder_attention_heads": 3, "decoder_attention_heads": 3}
DETR |= {"encoder_ffn_dim": 20, "decoder_ffn_dim": 20}
SPEECH = {"vocab_size": VOCAB, "hidden_size": 24, "num_mel_bins": 4}
SPEECH |= {f"{part}_num_attention_heads": 3 for part in ("encoder", "decoder")}
SPEECH |= {f"{part}_layers": 1 for part in ("encoder", "decoder")}
SPEECH |= {f"{part}_linear_units": 20 for part in ("encoder", "decoder")}
LED = BART | {"attention_window": 4, "max_encoder_position_embeddings": 40} | {"d_model": 24}


def draw(*shape: int) -> Tensor:
    return torch.randn(shape).double()


def make_text(n: int = N) -> Inputs:
    return {"input_ids": torch.randint(3, VOCAB, (2, n))}


def make_pair() -> Inputs:
    return make_text() | {"decoder_input_ids": torch.randint(3, VOCAB, (2, N - 2))}


def make_image(size: int = 16) -> Inputs:
    return {"pixel_values": draw(2, 3, size, size)}


def make_features() -> Inputs:
    return make_text() | {"visual_feats": draw(2, 5, 6), "visual_pos": draw(2, 5, 4).sigmoid()}


def make_sound() -> Inputs:
    mask = torch.ones(2, 90).long()
    mask[1, 60:] = 0
    return {"input_values": draw(2, 90), "attention_mask": mask}


def make_hidden(name: str = "hidden_states", *shape: int) -> Callable[[], Inputs]:
    return lambda: {name: draw(2, *(shape or (N, 24)))}


def make_masked() -> Inputs:
    return make_hidden()() | {"attention_mask": torch.ones(2, 1, N, N).long()}


def make_fastspeech2_encoder(config: Any) -> nn.Module:
    return FastSpeech2ConformerEncoder(config, config.encoder_config, use_encoder_input_layer=False)


class Case(NamedTuple):
    """A class of attention in `transformers.models`, the model to build, and its inputs."""

    name: str
    model_class: Any
    config: Any
    make_inputs: Callable[[], Inputs] = make_text
    dtype: torch.dtype = torch.float64

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]

    @property
    def class_name(self) -> str:
        return f"{self.name.partition('.')[2]}Attention"

    def build(self) -> nn.Module:
        """Make the model in float64, with weights large enough for a fault to show."""
        torch.manual_seed(0)
        model = self.model_class(self.config)
        draw_weights(model, 0.3)
        return model.to(self.dtype).eval()

    def run(self, model: nn.Module, inputs: Inputs) -> list[Tensor]:
        """Return the outputs of a model, the same at each call."""
        torch.manual_seed(0)  # ViLT draws the patches that it sees
        torch.set_default_dtype(torch.float64)  # for position embeddings
        try:
            return list(collect_outputs(model(**inputs)))
        finally:
            torch.set_default_dtype(torch.float32)


def make_case(attention: str, model: Any, make_inputs: Any = make_text, /, **config: Any) -> Case:
    config_class = config.pop("config_class", None) or model.config_class
    dtype = config.pop("dtype", torch.float64)
    return Case(attention, model, config_class(**config), make_inputs, dtype)


def collect_outputs(output: Any) -> Iterator[Tensor]:
    """Yield the float tensors of a model's output, also those of tuples and dicts in it."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif output is not None and not isinstance(output, hf.Cache | bool):
        for part in output.values() if hasattr(output, "values") else output:
            yield from collect_outputs(part)


TEXTS = [
    make_case("blip.BlipTextSelf", hf.BlipTextModel, **BERT24),
    make_case("bark.BarkSelf", hf.BarkSemanticModel, hidden_size=24, num_heads=3, num_layers=2,
              block_size=16, input_vocab_size=VOCAB, output_vocab_size=VOCAB),
    make_case("bloom.Bloom", hf.BloomModel, **ENDS, hidden_size=24, n_head=3, n_layer=2),
    make_case("codegen.CodeGen", hf.CodeGenModel, **GPT24 | {"n_head": 4}),
    make_case("convbert.ConvBertSelf", hf.ConvBertModel, **BERT24 | {"num_attention_heads": 6}),
    make_case("ctrl.MultiHead", hf.CTRLModel, **GPT24, dff=20),
    make_case("deberta.DisentangledSelf", hf.DebertaModel, **BERT24, relative_attention=True,
              pos_att_type=["c2p", "p2c"]),
    make_case("deberta_v2.DisentangledSelf", hf.DebertaV2Model, **BERT24, relative_attention=True,
              pos_att_type=["c2p", "p2c"], position_buckets=4),
    make_case("falcon.Falcon", hf.FalconModel, **ENDS, **WIDE, alibi=True),
    make_case("falcon.Falcon", hf.FalconModel, **ENDS, **WIDE, new_decoder_architecture=True,
              num_kv_heads=1),
    make_case("flaubert.MultiHead", hf.FlaubertModel, **XLM),
    make_case("flava.FlavaSelf", hf.FlavaTextModel, **BERT24),
    make_case("gpt_neo.GPTNeoSelf", hf.GPTNeoModel, **ENDS, hidden_size=24, num_heads=3,
              num_layers=2, attention_types=[[["global", "local"], 1]], window_size=4),
    make_case("gpt_neox_japanese.GPTNeoXJapanese", hf.GPTNeoXJapaneseModel, **ENDS, **WIDE),
    make_case("gptj.GPTJ", hf.GPTJModel, **GPT24),
    make_case("ibert.IBertSelf", hf.IBertModel, **BERT24),
    make_case("imagegpt.ImageGPT", hf.ImageGPTModel, **GPT24),
    make_case("luke.LukeSelf", hf.LukeModel, **BERT24, entity_vocab_size=9),
    make_case("megatron_bert.MegatronBertSelf", hf.MegatronBertModel, **BERT24),
    make_case("mobilebert.MobileBertSelf", hf.MobileBertModel, **BERT24, intra_bottleneck_size=24),
    make_case("mpnet.MPNetSelf", hf.MPNetModel, **BERT24),
    make_case("mpt.Mpt", hf.MptModel, **ENDS, d_model=24, n_heads=3, n_layers=2),
    make_case("openai.", hf.OpenAIGPTModel, **GPT24),
    make_case("rembert.RemBertSelf", hf.RemBertModel, **BERT24, input_embedding_size=24),
    make_case("roformer.RoFormerSelf", hf.RoFormerModel, **BERT24),
    make_case("squeezebert.SqueezeBertSelf", hf.SqueezeBertModel, **BERT24),
    make_case("tapas.TapasSelf", hf.TapasModel, **BERT24),
    make_case("visual_bert.VisualBertSelf", hf.VisualBertModel, **BERT24),
    make_case("xlm.MultiHead", hf.XLMModel, **XLM),
    make_case("xlnet.XLNetRelative", hf.XLNetModel, **ENDS, d_model=24, n_head=3, n_layer=2,
              d_inner=20),
]  # fmt: skip
OTHERS = [
    make_case("blip.Blip", hf.BlipVisionModel, make_image, **IMAGE24),
    make_case("bros.BrosSelf", hf.BrosModel,
              lambda: make_text() | {"bbox": draw(2, N, 4).sigmoid()},
              **BERT | {"hidden_size": 192}),
    make_case("canine.CanineSelf", hf.CanineModel, lambda: make_text(16), **BERT24,
              local_transformer_stride=4, downsampling_rate=4, dtype=torch.float32),
    make_case("clvp.ClvpSelf", ClvpEncoder, config_class=hf.ClvpEncoderConfig,
              **BERT | {"hidden_size": 96}, projection_dim=192),
    make_case("cpmant.CpmAnt", hf.CpmAntModel, **ENDS, **CPM),
    make_case("dab_detr.Detr", hf.DabDetrModel, make_image, **DETR, hidden_size=24),
    make_case("dab_detr.DabDetr", hf.DabDetrModel, make_image, **DETR, hidden_size=24),
    make_case("data2vec.Data2VecVisionSdpaSelf", hf.Data2VecVisionModel, make_image, **IMAGE24),
    make_case("data2vec.Data2VecVisionSelf", hf.Data2VecVisionModel, make_image, **IMAGE24,
              attn_implementation="eager"),
    make_case("donut.DonutSwinSelf", hf.DonutSwinModel, make_image, **SWIN),
    make_case("fastspeech2_conformer.FastSpeech2Conformer", make_fastspeech2_encoder,
              make_hidden("input_tensor"),
              config_class=hf.FastSpeech2ConformerConfig, **SPEECH),
    make_case("fsmt.", hf.FSMTModel, make_pair, **BART | {"d_model": 24}, langs=["en", "de"],
              src_vocab_size=VOCAB, tgt_vocab_size=VOCAB),
    make_case("groupvit.GroupViT", hf.GroupViTTextModel, make_text, **BERT24),
    make_case("hiera.HieraMaskUnit", hf.HieraModel, make_image, image_size=[16, 16], embed_dim=8,
              masked_unit_size=[2, 2],
              depths=[1, 1], num_heads=[2, 2], num_query_pool=1),
    make_case("layoutlmv3.LayoutLMv3Self", hf.LayoutLMv3Model, make_text, **BERT24,
              coordinate_size=4, shape_size=4, visual_embed=False),
    make_case("led.LEDDecoder", hf.LEDModel, make_pair, **LED),
    make_case("levit.Levit", hf.LevitModel, lambda: make_image(64), image_size=64,
              hidden_sizes=[16, 24, 24], num_attention_heads=[2, 2, 2], depths=[1, 1, 1],
              key_dim=[4, 4, 4]),
    make_case("lxmert.Lxmert", hf.LxmertModel, make_features, **BERT24, num_qa_labels=2,
              l_layers=1, r_layers=1, x_layers=1, visual_feat_dim=6),
    make_case("mgp_str.Mgpstr", hf.MgpstrModel, make_image, image_size=[16, 16], patch_size=4,
              hidden_size=24, num_hidden_layers=2, num_attention_heads=3),
    make_case("mobilevit.MobileViTSelf", hf.MobileViTModel, make_image, image_size=32,
              hidden_sizes=[8, 12, 16], neck_hidden_sizes=[4, 8, 8, 8, 12, 16, 20]),
    make_case("mvp.Mvp", hf.MvpModel, make_pair, **BART),
    make_case("pvt.PvtEfficientSelf", hf.PvtModel, make_image, **STAGES,
              sequence_reduction_ratios=[2, 1]),
    make_case("pvt_v2.PvtV2Self", hf.PvtV2Model, make_image, **STAGES, sr_ratios=[2, 1]),
    make_case("glpn.GLPNEfficientSelf", hf.GLPNModel, make_image, **STAGES, sr_ratios=[2, 1]),
    make_case("perceiver.PerceiverSelf", hf.PerceiverModel, make_hidden("inputs"), d_latents=24,
              d_model=24, num_latents=6, num_blocks=1, num_self_attends_per_block=2,
              num_self_attention_heads=3, num_cross_attention_heads=3),
    make_case("sam.SamVisionSdpa", hf.SamVisionModel, make_image, **IMAGE24,
              global_attn_indexes=[0], window_size=2),
    make_case("sam_hq.SamHQVisionSdpa", hf.SamHQVisionModel, make_image, **IMAGE24,
              global_attn_indexes=[0], window_size=2),
    make_case("sam.SamVision", hf.SamVisionModel, make_image, **IMAGE24, global_attn_indexes=[0],
              window_size=2, attn_implementation="eager"),
    make_case("sam_hq.SamHQVision", hf.SamHQVisionModel, make_image, **IMAGE24,
              global_attn_indexes=[0], window_size=2, attn_implementation="eager"),
    make_case("seggpt.SegGpt", SegGptEncoder, make_hidden("hidden_states", 4, 4, 24),
              config_class=hf.SegGptConfig, **IMAGE24),
    make_case("sew_d.DisentangledSelf", SEWDTransformerEncoder, make_masked,
              config_class=hf.SEWDConfig, **WIDE),
    make_case("speecht5.SpeechT5", SpeechT5EncoderWithoutPrenet, make_hidden("input_values"),
              config_class=hf.SpeechT5Config, hidden_size=24,
              encoder_layers=2, encoder_attention_heads=3, encoder_ffn_dim=20),
    make_case("swin2sr.Swin2SRSelf", hf.Swin2SRModel, make_image, **SWIN | {"patch_size": 1}),
    make_case("swinv2.Swinv2Self", hf.Swinv2Model, make_image, **SWIN),
    make_case("table_transformer.TableTransformer", hf.TableTransformerModel, make_image, **DETR,
              d_model=24),
    make_case("timesformer.TimesformerSelf", hf.TimesformerModel,
              make_hidden("pixel_values", 2, 3, 16, 16), **IMAGE24, num_frames=2),
    make_case("tvp.Tvp", TvpEncoder, make_hidden(), config_class=hf.TvpConfig, **WIDE),
    make_case("vilt.ViltSelf", hf.ViltModel, lambda: make_text() | make_image(),
              **IMAGE24 | BERT24),
    make_case("vitdet.VitDet", hf.VitDetModel, make_image, **IMAGE24),
    make_case("wavlm.WavLM", hf.WavLMModel, make_sound, **WAV2VEC2,
              attention_dropout=0.0, hidden_dropout=0.0, activation_dropout=0.0,
              feat_proj_dropout=0.0, layerdrop=0.0, apply_spec_augment=False),
    make_case("xglm.XGLM", hf.XGLMModel, **ENDS, d_model=24, attention_heads=3, num_layers=2,
              ffn_dim=20),
]  # fmt: skip
