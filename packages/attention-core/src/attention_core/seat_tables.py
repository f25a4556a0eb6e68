"""Where functions of tokens sit in each host's modules, by the import path of their classes."""

from typing import Literal, NamedTuple

Position = Literal["attention", "window", "branches", "norms", "residual"]


class Place(NamedTuple):
    """Where tokens pass a module of a host: the attribute that tells their width, and the call.

    `at` names the submodule that they pass, the module itself where it is empty; `attention` the
    one that is given the mask before they do, None where the host has none.
    """

    width: str
    at: str = ""
    before: bool = False
    attention: str | None = None


def _each(paths: str, place: Place) -> dict[str, Place]:
    return {f"transformers.models.{path}": place for path in paths.split()}


_BERTS = "bert.modeling_bert.BertAttention roberta.modeling_roberta.RobertaAttention"
_ALBERT = "albert.modeling_albert.AlbertAttention"
_DISTIL = "distilbert.modeling_distilbert.TransformerBlock"
_BARTS = (
    "bart.modeling_bart.BartEncoderLayer bart.modeling_bart.BartDecoderLayer "
    "plbart.modeling_plbart.PLBartEncoderLayer plbart.modeling_plbart.PLBartDecoderLayer"
)
# behind the projection, and its dropout where that is a module
_BEHIND = (
    _each(_BERTS, Place("output.dense.out_features", "output.dropout", attention="self"))
    | _each(_ALBERT, Place("dense.out_features", "output_dropout", attention=""))
    | _each(
        _DISTIL, Place("attention.out_lin.out_features", "attention.out_lin", attention="attention")
    )
    | _each(_BARTS, Place("embed_dim", "self_attn.out_proj", attention="self_attn"))
    | _each("gpt2.modeling_gpt2.GPT2Attention", Place("embed_dim", "resid_dropout", attention=""))
    | _each(
        "t5.modeling_t5.T5LayerSelfAttention",
        Place("SelfAttention.d_model", "dropout", attention="SelfAttention"),
    )
    | _each("vit.modeling_vit.ViTAttention", Place("o_proj.out_features", "o_proj", attention=""))
)
# before the norm that takes in the residual: position 7 of ContraNorm's BERT, 4 of its ALBERT
_SUMS = (
    _each(_BERTS, Place("output.dense.out_features", "output.LayerNorm", True, "self"))
    | _each(_ALBERT, Place("dense.out_features", "LayerNorm", True, ""))
    | _each(_DISTIL, Place("sa_layer_norm.normalized_shape", "sa_layer_norm", True, "attention"))
    | _each(_BARTS, Place("embed_dim", "self_attn_layer_norm", True, "self_attn"))
)
_FFNS = _each(
    "bert.modeling_bert.BertLayer roberta.modeling_roberta.RobertaLayer",
    Place("output.dense.out_features", "output.dropout", attention="attention.self"),
)

_MAPS = {
    "timm.layers.attention.Attention": Place("proj.out_features"),
    "timm.models.cait.TalkingHeadAttn": Place("proj.out_features"),
}
_WINDOWS = {"timm.models.swin_transformer.WindowAttention": Place("proj.out_features")}
# the map of a stage, its windows merged and shifted back, is what FeatScale averages as published
_STAGES = {
    "timm.models.swin_transformer.SwinTransformerBlock": Place("dim", "drop_path1", before=True)
}
_MLPS = {"timm.layers.mlp.Mlp": Place("fc2.out_features")}
_NORMS = {
    "torch.nn.modules.normalization.LayerNorm": Place("normalized_shape", before=True),
    "timm.layers.norm.LayerNorm": Place("normalized_shape", before=True),
}
_SPEECH = {
    "speechbrain.nnet.attention.MultiheadAttention": Place(
        "att.embed_dim", "att.out_proj", attention=""
    ),
    "speechbrain.nnet.attention.RelPosMHAXL": Place("embed_dim", "out_proj", attention=""),
}
_ATTENTIONS = _MAPS | _STAGES | _BEHIND | _SPEECH
WITH_NORMS_INSIDE = _MAPS | _WINDOWS  # of queries and keys
# each table is counted by itself, so that a layer's number is the same in all tables of a position
POSITIONS: dict[str, tuple[dict[str, Place], ...]] = {
    "attention": (_ATTENTIONS,),
    "window": (_WINDOWS,),
    "branches": (_ATTENTIONS, _MLPS | _FFNS),
    "norms": (_NORMS,),
    "residual": (_SUMS,),
}
