"""The contract of kernels: linear maps without influence of padding, at a linear cost."""

from functools import partial

import pytest
import torch
from attention_core import AttnScale, kernels, penalties
from attention_core.kernels.common import autocast_disabled
from torch import Tensor, nn
from torch.autograd import gradgradcheck
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from tests.core import cases as filters
from tests.core.kernels.cases import (
    CASES,
    DIM,
    EVERY,
    MASKS,
    TIGHT,
    B,
    Case,
    H,
    N,
    all_cases,
    gaps,
    layer_of,
    make,
    operands,
)
from tests.core.test_budget import flops, largest


def kernel_of(case: Case) -> nn.Module:
    return make(case, N, DIM, H).double().eval()


def uniform(mask: Tensor | None) -> Tensor:
    """The map whose rows are the mean over real keys."""
    valid = torch.ones(B, N) if mask is None else mask
    J = torch.stack([row / row.sum() for row in valid.double()])
    return J[:, None, None, :].expand(B, H, N, N)


def test_every_kernel_has_a_case():
    public = {x for x in vars(kernels).values() if isinstance(x, type) and issubclass(x, nn.Module)}
    assert {type(case.make(DIM, H, N)) for case in CASES} == public


@all_cases(EVERY)
@pytest.mark.parametrize("shape", [(0, N, DIM), (2, 0, DIM), (2, 1, DIM)])
def test_no_samples_no_tokens_and_one_token(case, shape):
    layer, x = layer_of(case).float(), torch.randn(shape, requires_grad=True)
    for mask in (None, torch.ones(shape[:2], dtype=torch.bool)):
        y = layer(x, mask)
        y.sum().backward()
        assert y.shape == x.grad.shape == shape
        assert y.isfinite().all()


@pytest.mark.parametrize("filter_case", filters.CASES, ids=[case.name for case in filters.CASES])
@pytest.mark.parametrize("mask", MASKS)
@all_cases()
def test_a_filter_of_the_operator_is_that_of_its_map_or_refused(case, mask, filter_case):
    (q, k, x, v), mask, filter = operands(), MASKS[mask](), filters.randomized(filter_case)
    A = kernel_of(case)(q, k, x, mask)
    if not case.is_a_map and filter_case.square_only:
        with pytest.raises(ValueError, match="use Plain"):
            filter(A, v)
    elif not case.is_a_map:
        assert filter(A, v).shape == v.shape
    else:
        literal = filters.reference_map(filter_case, filter, A.dense(), uniform(mask))
        ours, theirs = filter(A, v), literal @ v
        assert_close(ours, theirs, **TIGHT)
        assert_close(*filters.gradients([v], ours, theirs), **TIGHT)


@all_cases()
def test_padding_has_no_influence_on_real_tokens(case):
    layer, valid = layer_of(case).double().eval(), gaps()
    x = torch.randn(B, N, DIM).double().requires_grad_()
    noisy = torch.where(valid[..., None], x, 9 * torch.randn_like(x))
    with penalties(layer) as terms:
        clean, y = layer(x, valid)[valid], layer(noisy, valid)[valid]
    assert_close(y, clean, **TIGHT)
    assert_close(terms[:1], terms[1:], **TIGHT)
    (grad,) = torch.autograd.grad(clean.square().sum() + sum(terms[:1]), x)
    assert grad[valid].any()
    assert not grad[~valid].any()


@all_cases([case for case in EVERY if case.padding_is_truncation])
def test_padding_is_truncation(case):
    kernel, (q, k, x, v), m = kernel_of(case), operands(), 7
    short = kernel(q[:, :, :m], k[:, :, :m], x[:, :m])
    expected, valid = short @ v[:, :, :m], (torch.arange(N) < m).expand(B, N)
    keys = valid[:, None, None]
    for mask in (valid, keys, torch.where(keys, 0.0, -torch.inf), keys.expand(-1, 1, N, -1)):
        padded = kernel(q, k, x, mask)
        y = padded @ v
        assert_close(y[:, :, :m], expected, **TIGHT)
        assert y[:, :, m:].any() != case.padding_is_zero
        assert_close(*filters.gradients([q, k, x, v], y[:, :, :m], expected), **TIGHT)
        if hasattr(padded, "average"):  # not Primalformer's, which is no map
            assert_close(padded.average(v), short.average(v[:, :, :m]))
            for A in (short, expected @ expected.mT):
                assert AttnScale(H, masked=False)(A, v[:, :, :m]).shape == expected.shape
        if hasattr(kernel, "penalty"):
            assert_close(kernel.penalty(padded), kernel.penalty(short), **TIGHT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@all_cases(EVERY)
def test_a_sample_of_padding_is_zero_and_its_gradients_are_finite(case, dtype):
    kernel, (q, k, x, v), valid = kernel_of(case).to(dtype), operands(dtype=dtype), gaps()
    valid[1] = False
    A = kernel(q, k, x, valid)
    y, penalty = A @ v, kernel.penalty(A) if hasattr(kernel, "penalty") else 0
    assert y[0].any()
    assert not y[1].any()
    leaves = [q, k, x, v, *kernel.parameters()]
    grads = torch.autograd.grad(99 * y.sum() + penalty, leaves, materialize_grads=True)
    assert all(t.isfinite().all() for t in (y, *grads))


@all_cases(EVERY)
def test_causality_masks_of_pairs_biases_and_integers_are_refused(case):
    q, k, x, _ = operands()
    for mask in (torch.ones(B, 1, N, N).tril().bool(), -100.0 * gaps(), gaps().long()):
        with pytest.raises((TypeError, ValueError), match=r"keys alone|to add a bias|torch\.int64"):
            kernel_of(case)(q, k, x, mask)
    with pytest.raises(ValueError, match="is bidirectional: it cannot be causal"):
        layer_of(case)(x.float(), is_causal=True)


@pytest.mark.parametrize("training", [True, False])
@all_cases()
def test_gradients_reach_every_parameter_that_is_read(case, training):
    layer = layer_of(case).train(training)
    run = partial(checkpoint, layer, use_reentrant=False) if training else layer
    with penalties(layer) as terms:
        y = run(torch.randn(B, N, DIM), gaps())
    ((y * torch.randn_like(y)).sum() + sum(terms)).backward()
    grads = {name: weight.grad for name, weight in layer.named_parameters()}
    assert all(grad is not None and grad.isfinite().all() for grad in grads.values())
    read = dict(zip("qkv", grads.pop("qkv.weight").chunk(3), strict=True))
    assert "".join(name for name, grad in read.items() if not grad.any()) == case.unread
    del grads["qkv.bias"]  # a softmax does not see what all its keys share
    assert all(grad.any() for grad in grads.values())


@all_cases([case for case in EVERY if case.name != "yoso-surrogate"])  # no derivative of its map
def test_second_derivatives(case):
    kernel, leaves = kernel_of(case), operands(n=7)

    def run(q, k, x, v, *weights):
        A = kernel(q, k, x, gaps()[:, :7])
        return A @ v, *([kernel.penalty(A)] if hasattr(kernel, "penalty") else [])

    with sdpa_kernel(SDPBackend.MATH):  # the only one of torch's that has second derivatives
        assert gradgradcheck(run, [*leaves, *kernel.parameters()], fast_mode=True)


@all_cases(EVERY)
@pytest.mark.parametrize("mixed", [True, False])
def test_half_precision_is_near(case, mixed):
    kernel, valid = case.make(DIM, H, N).eval(), gaps()
    leaves = operands(dtype=torch.float32)
    exact = kernel(*leaves[:3], valid) @ leaves[3]
    q, k, x, v = (t.bfloat16() for t in leaves)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        y = (kernel if mixed else kernel.bfloat16())(q, k, x, valid) @ v
    assert y.dtype == torch.bfloat16
    grads = torch.autograd.grad(y.sum(), leaves, materialize_grads=True)
    assert all(t.isfinite().all() for t in (y, *grads))
    if case.half_tolerance:
        assert_close(y.float(), exact, rtol=case.half_tolerance, atol=case.half_tolerance)


@all_cases()
def test_time(case):
    growth = flops(layer_of(case, 512), 512, "cpu") / flops(layer_of(case, 256), 256, "cpu")
    assert (growth < 2.2) == case.linear_time
    assert growth < 4.1


@all_cases()
def test_memory_is_linear(case):
    sizes = [largest(layer_of(case, n), n, torch.ones(1, n, dtype=torch.bool)) for n in (256, 512)]
    assert sizes[1] <= 2.2 * sizes[0] < 512**2


@all_cases([case for case in CASES if case.compiles])
def test_compiles_in_one_graph(case):
    layer, x = layer_of(case), torch.randn(B, N, DIM)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    ours, theirs = compiled(x, gaps()), layer(x, gaps())
    assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert_close(*filters.gradients(list(layer.parameters()), ours, theirs), rtol=1e-3, atol=1e-4)


@all_cases()
def test_a_trace_and_transforms_compute_the_layer(case):
    layer = layer_of(case).eval()
    traced = torch.jit.trace(layer, (torch.randn(B, N, DIM), gaps()), check_trace=False)
    samples = [1, 0] if case.name == "reformer" else [1, 0, 1]  # see docs/export.md
    inputs = torch.randn(len(samples), N, DIM), gaps()[samples]
    assert_close(traced(*inputs), layer(*inputs))
    x = inputs[0].unsqueeze(1)
    rows, _ = torch.func.jvp(torch.vmap(layer), (x,), (x,))
    assert_close(rows, torch.stack([*map(layer, x)]))


def test_sequences_that_do_not_fit_are_refused_with_the_lengths_that_do():
    q, k, x, _ = operands()
    published = kernels.Nystromformer(DIM, H, 3, segments="published")
    for kernel, reason in (
        (kernels.Linformer(DIM, H, length=6), f"made for 6 tokens, got {N}"),
        (kernels.Primalformer(DIM, H, length=6), f"made for 6 tokens, got {N}"),
        (published, f"{N} tokens are no multiple of 3 landmarks"),
    ):
        with pytest.raises(ValueError, match=reason):
            kernel.double()(q, k, x)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("enabled", [False, True])
def test_autocast_is_disabled_inside_alone(device, enabled):
    one = torch.ones(1, 1, device=device)
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        with autocast_disabled(one):
            assert (one @ one).dtype == torch.float32
        assert torch.is_autocast_enabled("cpu") == enabled
