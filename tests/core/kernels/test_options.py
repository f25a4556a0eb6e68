"""Options and lengths that a kernel does not support are refused, with their allowed values."""

import re

import pytest
import torch
from attention_core import kernels

from tests.core.kernels.cases import DIM, H, N, all_cases, layer_of, operands

CHOICES = {
    "AGF": {"rho": "softmax, sigmoid, tanh, none", "penalty_variant": "released, paper"}
    | {"singular_values": "filtered, generated, learned, ones"},
    "Cosformer": {"horizon": "real, padded"},
    "Flowformer": {"features": "sigmoid, relu"},
    "Linformer": {"init": "normal, uniform"},
    "Nystromformer": {"init": "per_matrix, original", "segments": "real, published"},
    "Performer": {"activation": "softmax, relu", "scaled": "once, twice"}
    | {"mask_keys": "removed, zeroed"},
    "Primalformer": {"loss": "sample, batch", "trace": "raw, projected"}
    | {"init": "per_head, released", "padding": "excluded, published"},
    "Reformer": {"redraw": "training, always, never", "ring": "sample, joined"},
    "Singularformer": {"padding": "excluded, published"},
    "YOSO": {"gradient": "exact, surrogate"},
}
RANGES = [
    ("AGF", {"K": 0}, "order K must be a whole number of at least 1, got 0"),
    ("Cosformer", {"eps": 0.0}, "eps must be positive, got 0"),
    ("Flowformer", {"eps": 0.0}, "eps must be positive, got 0"),
    ("LinearAttention", {"eps": -1.0}, "eps must not be negative, got -1"),
    ("Linformer", {"length": 0, "rank": 5}, "length and rank must be at least 1, got 0 and 5"),
    ("Longformer", {"global_tokens": -1}, "global_tokens must be 0 or more, got -1"),
    *(("Longformer", {"window": w}, f"half on each side: got {w}") for w in (0, -2, 1, 7)),
    *(("Nystromformer", {"kernel_size": s}, f"no convolution, got {s}") for s in (4, -1)),
    ("Nystromformer", {"landmarks": 0}, "at least 1, got 0"),
    ("Performer", {"features": 0}, "features of at least 1, and eps and redraw_every of at least"),
    ("Performer", {"eps": -1.0}, "redraw_every of at least 0, got 256, -1.0 and 0"),
    ("Performer", {"redraw_every": -1}, "redraw_every of at least 0, got 256, 0.0001 and -1"),
    ("Primalformer", {"length": 9, "rank": 0, "multiplier": 2}, "at least 1, got 9, 0 and 2"),
    ("Reformer", {"hashes": 0}, "hashes must be at least 1, got 0"),
    ("Reformer", {"chunk": 0}, "chunk must be at least 1, got 0"),
    ("Reformer", {"buckets": 5}, "buckets must be even and at least 2, got 5"),
    ("Reformer", {"buckets": 0}, "buckets must be even and at least 2, got 0"),
    ("Reformer", {"max_buckets": 1}, "max_buckets must be even and at least 2, got 1"),
    ("SOFT", {"ratio": 0}, "at least 1, got 0 and 20"),
    ("SOFT", {"kernel_size": 2}, "odd, or 0 for no convolution, got 2"),
    ("Singularformer", {"rank": 0}, "rank must be at least 1, got 0"),
    ("YOSO", {"tau": 0}, "at least 1, got 0 and 128"),
    ("YOSO", {"block": 0}, "at least 1, got 8 and 0"),
    ("YOSO", {"scale": 1.5}, "above 0 and at most 1, got 1.5"),
]


@pytest.mark.parametrize("kernel", CHOICES)
def test_unknown_choices(kernel):
    for option, allowed in CHOICES[kernel].items():
        message = f"{kernel}'s {option} must be one of {allowed}, got 'other'"
        with pytest.raises(ValueError, match=message):
            getattr(kernels, kernel)(DIM, H, **{option: "other"})


@pytest.mark.parametrize(("kernel", "options", "message"), RANGES)
def test_numbers_out_of_range(kernel, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        getattr(kernels, kernel)(DIM, H, **options)


@pytest.mark.parametrize("kernel", ["Performer", "Primalformer", "SOFT"])
def test_heads_that_do_not_divide_the_width(kernel):
    with pytest.raises(ValueError, match="width 8 is not divisible by 3 heads"):
        getattr(kernels, kernel)(8, 3)


@pytest.mark.parametrize("kernel", ["Linformer", "Primalformer"])
def test_sequences_that_are_too_long(kernel):
    q, k, x, _ = operands()
    with pytest.raises(ValueError, match=f"made for 6 tokens, got {N}"):
        getattr(kernels, kernel)(DIM, H, length=6).double()(q, k, x)


def test_tokens_that_the_landmarks_do_not_divide():
    q, k, x, _ = operands()
    with pytest.raises(ValueError, match=f"{N} tokens are no multiple of 3 landmarks"):
        kernels.Nystromformer(DIM, H, 3, segments="published")(q, k, x)


@all_cases()
def test_a_causal_layer(case):
    with pytest.raises(ValueError, match="is bidirectional: it cannot be causal"):
        layer_of(case)(torch.randn(1, N, DIM), is_causal=True)
