"""Tiny random speech recognizers of speechbrain, and single layers of their attention."""

from functools import partial

import pytest
import torch
from attention_core import GFSA, AttnScale
from speechbrain.lobes.models.transformer.TransformerASR import TransformerASR
from speechbrain.nnet.attention import MultiheadAttention, RelPosMHAXL
from torch import Tensor, nn

from tests.hosts.helpers import draw_weights

B, N, U, WIDTH, HEADS, DEPTH = 2, 11, 5, 12, 3, 2
KINDS = {"regularMHA": MultiheadAttention, "RelPosMHAXL": RelPosMHAXL}
ENCODERS = ["transformer", "conformer", "branchformer"]
all_kinds = pytest.mark.parametrize("kind", KINDS)
FILTERS = {"gfsa": partial(GFSA, K=4, w0=0.3, wK=-0.7), "attnscale": AttnScale}
NUM_FRAMES = torch.tensor([N, 7])
PADDING = torch.arange(N) >= NUM_FRAMES[:, None]
LENGTHS = NUM_FRAMES / N  # speechbrain's relative lengths


def make_inputs() -> dict[str, Tensor]:
    tokens = torch.randint(1, 13, (B, U))
    return {"src": torch.randn(B, N, 7), "tgt": tokens, "wav_len": LENGTHS}


def build(encoder: str = "transformer", kind: str = "regularMHA", **options) -> TransformerASR:
    sizes = {"input_size": 7, "d_model": WIDTH, "nhead": HEADS, "d_ffn": 10, "kernel_size": 3}
    sizes |= {"csgu_linear_units": 6, "num_encoder_layers": DEPTH, "num_decoder_layers": 2}
    fixed = {"normalize_before": True, "causal": False, "dropout": 0.0, "max_length": 30}
    options = sizes | fixed | options
    return TransformerASR(13, encoder_module=encoder, attention_type=kind, **options).eval()


def build_layer(kind: str, **options) -> nn.Module:
    sizes = ("nhead", "d_model") if kind == "regularMHA" else ("num_heads", "embed_dim")
    module = KINDS[kind](**dict(zip(sizes, (HEADS, WIDTH), strict=True)), **options)
    return draw_weights(module, 0.5, 0).double().eval()  # biases too, which start at zero


def relative_positions(module: nn.Module, length: int = N) -> Tensor | None:
    """Return an embedding per distance, from -(length - 1) up, or None if the module needs none."""
    table = torch.randn(41, WIDTH, generator=torch.Generator().manual_seed(1))
    table = table.to(next(module.parameters()).dtype)
    relative = isinstance(module, RelPosMHAXL)
    return table[None, 20 - (length - 1) : 20 + length] if relative else None


def call_layer(module: nn.Module, x: Tensor, **given):
    return module(x, x, x, pos_embs=relative_positions(module, x.shape[1]), **given)
