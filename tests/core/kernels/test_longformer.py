"""The sliding window against its sums token by token, for windows of any size and any length."""

import pytest
import torch
from attention_core.kernels import Longformer

from tests.core.kernels import cases
from tests.core.kernels.cases import DIM, MASKS, H


def literal(window, global_tokens):
    def map_of(q, k, valid, h):
        """Every query asks every valid key whether it is near, or either is global."""
        rows, none = [], torch.zeros(len(k)).double()
        for i in range(len(q)):
            near = [abs(i - j) <= window / 2 or min(i, j) < global_tokens for j in range(len(k))]
            keys = torch.tensor([near[j] and valid[j] for j in range(len(k))])
            weights = torch.stack([(q[i] @ key / len(key) ** 0.5).exp() for key in k]) * keys
            rows.append(weights / weights.sum() if valid[i] and keys.any() else none)
        return torch.stack(rows)

    return map_of


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("global_tokens", [0, 1, 3])
@pytest.mark.parametrize("window", [2, 4, 6, 22, 64])  # 22: one block holds all
def test_is_its_equation(window, global_tokens, mask):
    kernel = Longformer(DIM, H, window, global_tokens)
    cases.assert_is(kernel, literal(window, global_tokens), MASKS[mask]())
