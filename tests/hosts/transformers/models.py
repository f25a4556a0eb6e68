"""Tiny random models of transformers, with their maps written out as a reference for filters."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers as hf
from torch import Tensor, nn

from tests.hosts.helpers import draw_weights

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

VOCAB, PAD = 31, 1
ENDS = {"vocab_size": VOCAB, "pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": 2}
WIDE = {"hidden_size": 24, "intermediate_size": 20}
WIDE |= {"num_attention_heads": 3, "num_hidden_layers": 2}
BERT = WIDE | {"hidden_size": 21, "max_position_embeddings": 40} | ENDS
CROSS = {"is_decoder": True, "add_cross_attention": True}
BART = ENDS | {"d_model": 21, "max_position_embeddings": 40}
BART |= {"encoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 20}
BART |= {"decoder_layers": 3, "decoder_attention_heads": 3, "decoder_ffn_dim": 19}
BART |= {"decoder_start_token_id": 2, "forced_eos_token_id": None}
DISTILBERT = ENDS | {"dim": 21, "n_heads": 3, "n_layers": 2, "hidden_dim": 20}
GPT2 = ENDS | {"n_embd": 21, "n_head": 3, "n_layer": 2, "n_positions": 40}
LLAMA = ENDS | WIDE | {"num_attention_heads": 6, "num_key_value_heads": 2}
# windows of four tokens; every second layer of Gemma 2 and gpt-oss has none
SLIDING = LLAMA | {"sliding_window": 4}
GEMMA2 = SLIDING | {"head_dim": 4, "query_pre_attn_scalar": 4, "attn_logit_softcapping": 0.7}
GPT_OSS = SLIDING | {"head_dim": 4, "num_local_experts": 2, "num_experts_per_tok": 1}
T5 = ENDS | {"d_model": 21, "d_kv": 5, "num_heads": 3, "num_layers": 2, "d_ff": 20}
T5 |= {"decoder_start_token_id": 0}
VIT = WIDE | {"hidden_size": 21, "image_size": 12, "patch_size": 4}
WAV2VEC2 = WIDE | {"conv_dim": (8, 8), "conv_kernel": (4, 3), "conv_stride": (3, 2)}
WAV2VEC2 |= {"num_feat_extract_layers": 2, "feat_extract_norm": "layer"}
WAV2VEC2 |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 4}


class Family(NamedTuple):
    model_class: Any
    config: Any
    num_layers: int  # with self-attention


def _make_family(model_class: Any, num_layers: int, /, **config: Any) -> Family:
    return Family(model_class, model_class.config_class(**config), num_layers)


FAMILIES = {
    "bert": _make_family(hf.BertModel, 2, **BERT),
    "albert": _make_family(hf.AlbertModel, 1, **BERT, embedding_size=10),
    "roberta": _make_family(hf.RobertaModel, 2, **BERT),
    "distilbert": _make_family(hf.DistilBertModel, 2, **DISTILBERT),
    "gpt2": _make_family(hf.GPT2LMHeadModel, 2, **GPT2),
    "llama": _make_family(hf.LlamaForCausalLM, 2, **LLAMA),
    "mistral": _make_family(hf.MistralForCausalLM, 2, **SLIDING),
    "gemma2": _make_family(hf.Gemma2ForCausalLM, 2, **GEMMA2),
    "gpt_oss": _make_family(hf.GptOssForCausalLM, 2, **GPT_OSS),
    "gpt_neox": _make_family(hf.GPTNeoXForCausalLM, 2, **WIDE, **ENDS),
    "bart": _make_family(hf.BartForConditionalGeneration, 5, **BART),
    "plbart": _make_family(hf.PLBartForConditionalGeneration, 5, **BART),
    "t5": _make_family(hf.T5ForConditionalGeneration, 4, **T5),
    "vit": _make_family(hf.ViTModel, 2, **VIT),
    "wav2vec2": _make_family(hf.Wav2Vec2Model, 2, **WAV2VEC2),
}
TEXT = [name for name in FAMILIES if name not in ("vit", "wav2vec2")]
EAGER = ("gemma2", "gpt_oss")  # as transformers runs them
SLIDES = ("mistral", "gemma2", "gpt_oss")
GENERATIVE = ("gpt2", "llama", *SLIDES, "gpt_neox", "bart", "t5")


def build(name: str, **options: Any) -> nn.Module:
    """Make a family's model in float64, with weights large enough for a fault to show."""
    config = FAMILIES[name].config
    model = FAMILIES[name].model_class(type(config).from_dict(config.to_dict() | options))
    draw_weights(model, 0.3)
    if name == "gpt_oss":
        model.set_experts_implementation("eager")  # the fused experts have no float64
    return model.double().eval()


def make_inputs(name: str, n: int = 9, padded: bool = False) -> dict[str, Tensor]:
    """Make two samples, the second padded at the right, and a target for an encoder-decoder."""
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 12, 12).double()}
    if name == "wav2vec2":
        return {"input_values": torch.randn(2, 61).double()}
    given = {"input_ids": torch.randint(3, VOCAB, (2, n))}
    if padded:
        given["attention_mask"] = torch.ones(2, n).long()
        given["attention_mask"][1, n - 4 :] = 0
        given["input_ids"][1, n - 4 :] = PAD
    if FAMILIES[name].config.is_encoder_decoder:
        given["decoder_input_ids"] = torch.randint(3, VOCAB, (2, n - 2))
    return given


def list_checkpointed_gradients(model: nn.Module, run: Callable[[], Tensor]) -> list[list[Tensor]]:
    """Return the gradients of a training step, without and with gradient checkpointing."""
    grads = []
    for _ in range(2):
        model.zero_grad()
        torch.manual_seed(5)
        run().square().sum().backward()
        grads.append([w.grad for w in model.parameters() if w.grad is not None])
        model.activation_checkpointing_enable()
    return grads
