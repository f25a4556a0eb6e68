"""Tiny random recognisers of speechbrain, and single layers of their attention."""

from functools import partial

import pytest
import torch
from attention_core import GFSA, AttnScale
from attention_core.attach import Filtered
from speechbrain.lobes.models.transformer.TransformerASR import TransformerASR
from speechbrain.nnet.attention import MultiheadAttention, RelPosMHAXL
from torch import Tensor, nn

B, N, U, WIDTH, HEADS, DEPTH = 2, 11, 5, 12, 3, 2
KINDS = {"regularMHA": MultiheadAttention, "RelPosMHAXL": RelPosMHAXL}
each_encoder = pytest.mark.parametrize("encoder", ["transformer", "conformer", "branchformer"])
each_kind = pytest.mark.parametrize("kind", KINDS)
FILTERS = {"gfsa": partial(GFSA, K=4, w0=0.3, wK=-0.7), "attnscale": AttnScale}
each_filter = pytest.mark.parametrize("name", FILTERS)
REAL = torch.tensor([N, 7])  # frames
LENGTHS = REAL / N  # as speechbrain has them


def asr(encoder: str = "transformer", kind: str = "regularMHA", **options) -> TransformerASR:
    sizes = {"input_size": 7, "d_model": WIDTH, "nhead": HEADS, "d_ffn": 10, "kernel_size": 3}
    sizes |= {"csgu_linear_units": 6, "num_encoder_layers": DEPTH, "num_decoder_layers": 2}
    fixed = {"normalize_before": True, "causal": False, "dropout": 0.0, "max_length": 30}
    return TransformerASR(
        13, encoder_module=encoder, attention_type=kind, **sizes | fixed | options
    ).eval()


def layer(kind: str, **options) -> nn.Module:
    sizes = ("nhead", "d_model") if kind == "regularMHA" else ("num_heads", "embed_dim")
    module = KINDS[kind](**dict(zip(sizes, (HEADS, WIDTH), strict=True)), **options)
    for weight in module.parameters():  # biases too, which start at zero
        nn.init.normal_(weight, std=0.5)
    return module.double().eval()


def positions(module: nn.Module, length: int = N) -> Tensor | None:
    """Of each distance, from the farthest past to the farthest future; None where it takes none."""
    table = torch.randn(41, WIDTH, generator=torch.Generator().manual_seed(1))
    table = table.to(next(module.parameters()).dtype)
    relative = isinstance(module, RelPosMHAXL)
    return table[None, 20 - (length - 1) : 20 + length] if relative else None


def call(module: nn.Module, x: Tensor, **given):
    return module(x, x, x, pos_embs=positions(module, x.shape[1]), **given)


def scramble(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, Filtered):
            for weight in module.filter.parameters():
                nn.init.normal_(weight, std=0.5)
    return model


def filtered(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, Filtered)]
