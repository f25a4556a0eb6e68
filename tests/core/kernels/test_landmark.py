"""Operators of landmark kernels: three factors, a convolution, and precision under autocast."""

import pytest
import torch
from attention_core.kernels import Nystromformer
from attention_core.kernels.common import autocast_disabled
from attention_core.kernels.landmark import LandmarkOperator
from torch.testing import assert_close

from tests.core.kernels.cases import DIM, B, D, H, N, gaps, operands


def factors(m: int = 5) -> list[torch.Tensor]:
    return [torch.randn(B, H, *size).double() for size in ((N, m), (m, m), (N, m))]


def test_factors_keep_their_precision():
    left, core, right = (t.float() for t in factors())
    v = torch.randn(B, H, N, D).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        y = LandmarkOperator(left, core, right) @ v
    assert y.dtype == torch.bfloat16
    assert_close(y, (left @ core @ right.mT @ v.float()).bfloat16())


@pytest.mark.parametrize("mixed", [False, True])
def test_a_compiler_follows(mixed):
    kernel, (q, k, x, v) = Nystromformer(DIM, H, 3, 3), operands(dtype=torch.float32)

    def run(q, k, x, v):
        return kernel(q, k, x, gaps()).__matmul__(v)  # dynamo does not follow `@` here

    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        compiled = torch.compile(run, backend="eager", fullgraph=True)
        assert_close(compiled(q, k, x, v), run(q, k, x, v))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("enabled", [False, True])
def test_autocast_is_disabled_inside_alone(device, enabled):
    one = torch.ones(1, 1, device=device)
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        with autocast_disabled(one):
            assert (one @ one).dtype == torch.float32
        assert torch.is_autocast_enabled("cpu") == enabled
