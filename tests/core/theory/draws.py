"""Random instances for the theorems, in float64, from a seed that hypothesis draws."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(2, 9)
scales = st.sampled_from([0.01, 0.3, 1.0, 4.0, 20.0])


def draw(max_examples: int = 40, **strategies: Any) -> Callable[[Callable[..., None]], Any]:
    """Run a test on random seeds, and on what the strategies draw."""
    drawn = given(seed=seeds, **strategies)
    return lambda test: settings(max_examples=max_examples, deadline=None)(drawn(test))


def normal(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def softmax_map(seed: int, n: int, scale: float = 1.0) -> Tensor:
    return (scale * normal(seed, n, n)).softmax(-1)


def center(x: Tensor) -> Tensor:
    return x - x.mean(-2, keepdim=True)
