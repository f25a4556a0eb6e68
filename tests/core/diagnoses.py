"""A diagnosis of made-up numbers."""

import math
from dataclasses import replace

from attention_core.diagnosis import Diagnosis, LayerDiagnosis, Leverage, TokenMeasures


def make_tokens(hfc_lfc: float) -> TokenMeasures:
    return TokenMeasures(
        hfc_lfc, 0.5, 0.25, -0.125, 3.0, 7.0, [4.0, 1.0],
        trimmed_hfc_lfc=hfc_lfc, trimmed_token_cosine=0.25, largest_channel_share=0.1,
        largest_token_norm=1.5, outlier_channels=[], outlier_tokens=0.0,
        samples={"hfc_lfc": [hfc_lfc], "token_cosine": [0.25]},
    )  # fmt: skip


def make_layer(index: int, **changes) -> LayerDiagnosis:
    steps = {"input": make_tokens(0.8), "attention": make_tokens(0.1)}
    steps |= {"residual": make_tokens(0.4), "mlp": make_tokens(0.6)}
    layer = LayerDiagnosis(
        index=index,
        name=f"a.very.long.path.of.modules.blocks.{index}.attn",
        module="timm.layers.attention.Attention",
        num_heads=2,
        is_causal=False,
        steps=steps,
        attention_entropy=[1.5, math.nan],
        relative_entropy=[0.75, math.nan],
        map_cosine=0.5,
        head_cosine=0.25,
        responses=[[1.0, 0.5], [1.0, 0.25]],
        eigenvalue_shares={"smoothing": 0.5, "sharpening": 0.25, "tied": 0.25},
        value_output_spectrum=[[1 + 2j, 0j], [0.5 + 0j, 0j]],
        condition_number=math.inf,
        coefficients={"filter.wK": [0.0, 0.0]},
        bounds={"measured": 0.5, "attention": 3.0},
        changes={"attention": -0.69, "MLP": 0.41},
    )
    return replace(layer, **changes)


def make_report(**changes) -> Diagnosis:
    leverage = [Leverage("GFSA", 1, "wK", -0.25, 0.5)]
    layers = [make_layer(0), make_layer(1)]
    report = Diagnosis("VisionTransformer", 197, 8, layers, leverage, "It smooths.", ["a <note>"])
    return replace(report, **changes)
