"""Models and slots that attach refuses, in every library, each with its sentence."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import transformers as hf
from attention_core import AGF, GFSA, EigenSpectrum, SelfAttention, attach
from attention_core.tokens import ContraNorm, FeatScale, LayerScale
from speechbrain.nnet.attention import MultiheadAttention
from timm.layers.attention import Attention
from timm.models import levit
from torch import nn
from transformers.models.t5gemma2.modeling_t5gemma2 import T5Gemma2MergedAttention

from tests.hosts import speechbrain_models, timm_models, torch_models
from tests.hosts.helpers import OwnAttention, filtered_modules
from tests.hosts.transformers import models

CONTRAST = partial(ContraNorm, scale=0.1)
KERNEL, REPARAM = {"kernel": AGF}, {"reparam": EigenSpectrum}
NORMS, RESIDUAL = ({"tokens": CONTRAST, "position": name} for name in ("norms", "residual"))
BRANCHES = {"tokens": LayerScale, "position": "branches"}


def torch_layer(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.MultiheadAttention(24, 4, **options)


def recognizer(kind: str, decoders: int) -> Callable[[], nn.Module]:
    options = {"nhead": 2, "num_decoder_layers": decoders}
    return lambda: speechbrain_models.build("conformer", kind, **options)


NO_KERNEL, NO_REPARAM = "has no place for a kernel", "has no place for a reparameterisation"
NOT_SQUARE, PLAIN = "a map that is not square", "only attention that stays Plain"
NO_PLACE, NO_MASK = "no place for tokens at position", "norms of .* see no mask.*padding or future"
# a model, the options of attach, and what is said
REFUSED: list[tuple[Callable[[], nn.Module], dict[str, Any], str]] = [
    *((partial(timm_models.build, name), KERNEL, NO_KERNEL) for name in ("cait", "swin")),
    *((partial(models.build, name), KERNEL, f"{NO_KERNEL}: it is causal")
      for name in ("gpt2", "llama", "gemma2")),
    (partial(models.build, "t5"), KERNEL, f"{NO_KERNEL}: its bias depends on the query"),
    (lambda: levit.Attention(12, 4, 3, resolution=3), KERNEL, f"{NO_KERNEL}: it forms its map"),
    (partial(models.build, "gpt2"), REPARAM, f"{NO_REPARAM}: no weights .* by name, as in ViT"),
    (partial(models.build, "gemma2"), REPARAM, "has no square projections to reparameterise"),
    *((partial(speechbrain_models.build, kind=kind), REPARAM, f"{made.__name__} {NO_REPARAM}")
      for kind, made in speechbrain_models.KINDS.items()),
    (lambda: nn.Sequential(Attention(12, 3), Attention(12, 3, dim_out=24)), REPARAM,
     "has no square projections to reparameterise"),
    (lambda: torch.ao.quantization.quantize_dynamic(timm_models.build(), {nn.Linear}), REPARAM,
     "has quantised or adapted projections"),
    (lambda: Attention(12, 3, scale_norm=True, norm_layer=nn.LayerNorm), REPARAM, "has a norm or"),
    (torch_layer(add_bias_kv=True), {}, "has a key of its own, so that its map is not square"),
    (torch_layer(add_zero_attn=True), {}, "a key of its own.*: leave it out by layers="),
    (lambda: SelfAttention(24, 4), {"where": SelfAttention}, "SelfAttention has its own filter"),
    (torch_layer(kdim=5), {}, f"{PLAIN}, torch.*: its queries and its keys are of"),
    (partial(MultiheadAttention, 3, 12, add_bias_kv=True), {}, NOT_SQUARE),
    (partial(MultiheadAttention, 3, 12, add_zero_attn=True), {}, NOT_SQUARE),
    (lambda: speechbrain_models.build().decoder, {}, f"{PLAIN}.*leaves decoders of speechbrain"),
    (lambda: nn.ModuleDict(
        {"decoder": nn.ModuleList([speechbrain_models.build_layer("RelPosMHAXL")])}), {},
     f"{PLAIN}.*leaves decoders of speechbrain"),
    (lambda: models.build("bert", **models.CROSS).encoder.layer[0].crossattention.self, {},
     f"BertCrossAttention has {PLAIN}"),
    (partial(T5Gemma2MergedAttention, hf.T5Gemma2DecoderConfig(hidden_size=8), 0), {}, PLAIN),
    (recognizer("RoPEMHA", 1), {}, f"TransformerASR has {PLAIN}.*where='RoPEMHA'"),
    (recognizer("RoPEMHA", 0), {}, "has no attention that attach knows.*where='RoPEMHA'"),
    (recognizer("hypermixing", 0), {}, "no attention that attach knows.*no other module is named"),
    (partial(torch.ao.nn.quantizable.MultiheadAttention, 24, 4), {}, r"has torch\.ao\.nn\.quantiz"),
    (lambda: hf.NystromformerModel(hf.NystromformerConfig(**models.BERT)), {},
     "it has .*NystromformerSelfAttention"),
    (partial(models.build, "t5"), RESIDUAL, f"{NO_PLACE} 'residual'"),
    (partial(models.build, "vit"), BRANCHES, f"{NO_PLACE} 'branches'"),
    *((partial(models.build, name), {"tokens": FeatScale}, "would leak future tokens")
      for name in ("gpt2", "t5", "bart")),
    *((partial(models.build, name), NORMS, NO_MASK) for name in ("gpt2", "bert")),
    (speechbrain_models.build, NORMS, NO_MASK),
    (timm_models.build, {"where": "Nope"}, r"no module 'Nope'; it has timm.* without where"),
    (timm_models.build, {"where": nn.Conv1d}, "has no module of Conv1d"),
    (timm_models.build, {"where": 3}, "where must be a class, its name or a function of a module"),
    (timm_models.build, {"where": lambda module: True}, "and a part of it"),
    (timm_models.build, {"where": "Mlp"}, "Mlp stores no number of heads"),
    (OwnAttention, {}, "where='OwnAttention' filters its map, if it applies one"),
    (lambda: SelfAttention(4, 2), {}, "takes its mechanisms when it is made"),
    (torch_models.build_encoder, NORMS, NO_MASK),
]  # fmt: skip


@pytest.mark.parametrize(("build", "options", "reason"), REFUSED)
def test_attach_refuses_in_one_sentence(build, options, reason):
    model = build()
    with pytest.raises((TypeError, ValueError), match=reason) as refused:
        attach(model, GFSA, **options)
    assert len(str(refused.value).splitlines()) == 1
    assert not filtered_modules(model)
