"""Random instances for the theorems, in float64, from a seed that hypothesis draws."""

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(2, 9)
scales = st.sampled_from([0.01, 0.3, 1.0, 4.0, 20.0])
few = settings(max_examples=40, deadline=None)
fewest = settings(max_examples=12, deadline=None)  # each has many layers


def normal(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def softmax_map(seed: int, n: int, scale: float = 1.0) -> Tensor:
    return (scale * normal(seed, n, n)).softmax(-1)


def center(x: Tensor) -> Tensor:
    return x - x.mean(-2, keepdim=True)
