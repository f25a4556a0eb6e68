"""Re-attention: outside the contract, as it needs the map itself and mixes heads."""

import pytest
import torch
from attention_core import ReAttention, SelfAttention, Softmax
from torch.testing import assert_close

from tests.core import reference
from tests.core.cases import TIGHT, B, D, H, N, draw_weights, gradients, qkv

all_modes = pytest.mark.parametrize("training", [True, False])


def randomized(scale: float = 0.3) -> ReAttention:
    filter = draw_weights(ReAttention(H, scale))
    filter.norm.running_mean.normal_()
    filter.norm.running_var.uniform_(0.5, 2)
    return filter


def literal(filter, A):
    running = None if filter.training else (filter.norm.running_mean, filter.norm.running_var)
    mix, norm = filter.mix, filter.norm
    weights = (mix.weight[:, :, 0, 0], mix.bias, norm.weight, norm.bias)
    return reference.reattention(A, *weights, filter.scale, running)


@all_modes
@pytest.mark.parametrize("kind", ["operator", "tensor"])
def test_is_its_equation(training, kind):
    (q, k, v), filter = qkv(), randomized().train(training)
    A = reference.softmax_map(q, k)
    dense = literal(filter, A) @ v
    ours = filter(Softmax(q, k) if kind == "operator" else A, v)
    assert_close(ours, dense, **TIGHT)
    assert_close(*gradients([q, k, v, *filter.parameters()], ours, dense), **TIGHT)


def test_refuses_what_it_cannot_mix():
    filter = ReAttention(H)
    with pytest.raises(ValueError, match=r"4 queries and 6 keys; use Plain for cross-attention"):
        filter(Softmax(torch.randn(1, H, 4, D), torch.randn(1, H, 6, D)), torch.randn(1, H, 6, D))
    for shape in ((B, H + 1, N, N), (B, H, H), (H, N, N), (N, N)):
        with pytest.raises(ValueError, match=rf"filter of {H} heads got a map of shape"):
            filter(torch.rand(shape), torch.randn(*shape[:-1], D))


@pytest.mark.parametrize(
    "masked",
    [{"is_causal": True}, *({"mask": mask} for mask in (torch.arange(N) > 1, torch.eye(N) * -1e9))],
)
def test_tells_that_it_sees_what_a_mask_forbids(masked):
    (q, k, v), filter = qkv(), ReAttention(H).double()
    with pytest.warns(UserWarning, match="tokens see padding or the future"):
        filter(Softmax(q, k, **masked), v)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@all_modes
def test_half_precision_and_autocast(dtype, training):
    filter = randomized().float().train(training)
    q, k, v = (t.detach().float() for t in qkv())
    exact = filter(Softmax(q, k), v)
    half = filter(Softmax(q.to(dtype), k.to(dtype)), v.to(dtype))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = filter(Softmax(q, k), v)
    assert (half.dtype, mixed.dtype) == (dtype, torch.float32)
    for y in (half, mixed):
        assert (y - exact).norm() < 0.05 * exact.norm()
    assert filter.norm.running_var.dtype == torch.float32
    assert filter.bfloat16()(Softmax(q, k), v.to(dtype)).dtype == dtype


@all_modes
def test_compiles_as_one_graph(training):
    torch.compiler.reset()
    layer = SelfAttention(6, H, filter=ReAttention).train(training)
    x = torch.randn(B, N, 6)
    assert_close(torch.compile(layer, fullgraph=True, backend="eager")(x), layer(x))
