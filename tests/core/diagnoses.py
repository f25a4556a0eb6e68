"""A diagnosis of made-up numbers, as `Diagnosis.to_dict` returns it."""

from typing import Any

import torch

TOKENS, DIM = 17, 11


def make_tokens(level: float) -> dict[str, Any]:
    """Return the measures of tokens whose high frequencies are at a level from 0 to 1."""
    return {
        "hfc_lfc": level,
        "hfc_share": level / (1 + level**2) ** 0.5,
        "token_cosine": 1 - 0.8 * level,
        "signed_token_cosine": 1 - 0.9 * level,
        "effective_rank": 1 + DIM * level,
        "high_frequency_norm": 10 * level,
        "singular_values": [9 * 0.5 ** (i * (1.2 - level)) for i in range(DIM)],
        "trimmed_hfc_lfc": level,
        "trimmed_token_cosine": 1 - 0.8 * level,
    }


def make_diagnosis(
    num_layers: int = 5, num_heads: int = 3, decay: float = 0.8, shares: bool = True
) -> dict[str, Any]:
    """Return a diagnosis whose high frequencies decay by a factor a layer."""
    frequency = torch.linspace(0, 1, TOKENS // 2 + 1)
    layers = []
    for i in range(num_layers):
        before, after = decay**i, decay ** (i + 1)
        levels = {"input": before, "attention": after / 2, "residual": 0.9 * after, "mlp": after}
        gains = [(-3 * (h + 1) * (1 - decay) * frequency).exp() for h in range(num_heads)]
        layers.append({
            "index": i,
            "name": f"blocks.{i}.attn",
            "module": "timm.layers.attention.Attention",
            "num_heads": num_heads,
            "is_causal": False,
            "stack": "model",
            "changes": {"attention": -0.2, "MLP": 0.05 * i},
            "steps": {step: make_tokens(level) for step, level in levels.items()},
            "attention_entropy": [2.0] * num_heads,
            "relative_entropy": [0.7] * num_heads,
            "map_cosine": 1 - 0.5 * after,
            "head_cosine": 0.5,
            "responses": [gain.tolist() for gain in gains],
            "eigenvalue_shares": {"smoothing": 0.6, "sharpening": 0.3, "tied": 0.1}
            if shares
            else None,
            "value_output_spectrum": None,
            "condition_number": 10.0 + i,
            "coefficients": {"filter.wK": [0.1 * (i + h) for h in range(num_heads)]},
            "bounds": {"attention": 2.0, "residual": 3.0, "alpha": 0.5, "measured": decay},
        })  # fmt: skip
    return {"model": "Tiny", "num_tokens": TOKENS, "num_samples": 2, "layers": layers,
            "leverage": None, "verdict": "It does.",
            "limits": {"token_cosine": 0.9, "hfc_lfc": 0.5}}  # fmt: skip
