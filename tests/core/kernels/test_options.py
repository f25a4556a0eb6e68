"""Sequences that a kernel does not support are refused, with the lengths that it allows."""

import pytest
import torch
from attention_core import kernels

from tests.core.kernels.cases import DIM, H, N, all_cases, layer_of, operands


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
