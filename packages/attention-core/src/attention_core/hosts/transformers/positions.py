"""The hook points of transformers' models, by the import path of their classes."""

from attention_core.hosts.hook_points import HookPoint

_BERT = "bert.modeling_bert.BertAttention roberta.modeling_roberta.RobertaAttention"
_BERT_DIM = "output.dense.out_features"
_ALBERT = "albert.modeling_albert.AlbertAttention"
_DISTILBERT = "distilbert.modeling_distilbert.TransformerBlock"
_BART = (
    "bart.modeling_bart.BartEncoderLayer bart.modeling_bart.BartDecoderLayer "
    "plbart.modeling_plbart.PLBartEncoderLayer plbart.modeling_plbart.PLBartDecoderLayer"
)
# several classes separated by spaces share a hook point
_TABLES = {
    # after the output projection, and after its dropout if that is a module
    "attention": {
        _BERT: HookPoint(_BERT_DIM, "output.dropout", attention="self"),
        _ALBERT: HookPoint("dense.out_features", "output_dropout", attention=""),
        _DISTILBERT: HookPoint(
            "attention.out_lin.out_features", "attention.out_lin", attention="attention"
        ),
        _BART: HookPoint("embed_dim", "self_attn.out_proj", attention="self_attn"),
        "gpt2.modeling_gpt2.GPT2Attention": HookPoint("embed_dim", "resid_dropout", attention=""),
        "t5.modeling_t5.T5LayerSelfAttention": HookPoint(
            "SelfAttention.d_model", "dropout", attention="SelfAttention"
        ),
        "vit.modeling_vit.ViTAttention": HookPoint("o_proj.out_features", "o_proj", attention=""),
    },
    "mlp": {
        "bert.modeling_bert.BertLayer roberta.modeling_roberta.RobertaLayer": HookPoint(
            _BERT_DIM, "output.dropout", attention="attention.self"
        )
    },
    # before the norm of the residual sum: position 7 of ContraNorm's BERT, 4 of its ALBERT
    "residual": {
        _BERT: HookPoint(_BERT_DIM, "output.LayerNorm", True, "self"),
        _ALBERT: HookPoint("dense.out_features", "LayerNorm", True, ""),
        _DISTILBERT: HookPoint(
            "sa_layer_norm.normalized_shape", "sa_layer_norm", True, "attention"
        ),
        _BART: HookPoint("embed_dim", "self_attn_layer_norm", True, "self_attn"),
    },
}
HOOK_POINTS = {
    table: {
        f"transformers.models.{path}": point
        for paths, point in points.items()
        for path in paths.split()
    }
    for table, points in _TABLES.items()
}
