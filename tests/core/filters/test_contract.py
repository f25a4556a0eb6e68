"""The contract of filters: equal to the paper for every operator, and safe in every host."""

import pytest
import torch
from attention_core import AttnScale, LowRank, Softmax, filters
from attention_core.spectral import matrix, response
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

from tests.core import reference
from tests.core.cases import (
    CASES,
    FORBIDDEN,
    MASKS,
    OUTSIDE_CONTRACT,
    TIGHT,
    B,
    D,
    H,
    N,
    all_cases,
    gradients,
    qkv,
    randomized,
    reference_map,
)

all_masks = pytest.mark.parametrize("kind", MASKS)


def test_every_filter_has_a_case_and_coefficients_of_one_float_a_head():
    exported = {value for value in vars(filters).values() if isinstance(value, type)}
    made = [case.make(H) for case in CASES]
    assert set(map(type, made)) | OUTSIDE_CONTRACT == exported
    weights = [weight for filter in made for weight in filter.parameters()]
    assert {(w.shape, w.dtype) for w in weights} == {((H,), torch.float32)}


def test_coefficients_that_are_not_learned_are_buffers_under_the_names_of_old_files():
    filter = filters.GFSA(H, w0=0.2).requires_grad_()
    assert [name for name, _ in filter.named_parameters()] == ["wK"]
    saved = {name: torch.nn.Parameter(torch.rand(H), name == "wK") for name in ("w0", "w1", "wK")}
    filter.load_state_dict(saved)
    for name, weight in filter.state_dict().items():
        assert torch.equal(weight, saved[name])


@all_cases()
@pytest.mark.parametrize("kind", [*MASKS, "one tensor", "computed from queries"])
def test_fused_equals_the_literal_equation_and_is_linear(case, kind):
    (q, k, v), options, filter = qkv(), MASKS.get(kind, dict)(), randomized(case)
    leaves = [q, k, v, *filter.parameters()]
    leaves += [t for t in options.values() if isinstance(t, Tensor) and t.requires_grad]
    if kind == "one tensor":
        k = v = q
    if kind == "computed from queries":  # as relative positions are
        k, options = q.roll(1, -1), {"mask": q @ k.mT}
    A = reference.softmax_map(q, k, **options)
    J = reference.uniform(reference.allowed(q, k, options.get("mask"), "is_causal" in options))
    operator, u = Softmax(q, k, **options), torch.randn_like(v)
    fused, dense = filter(operator, v), reference_map(case, filter, A, J) @ v
    assert_close(fused, dense, **TIGHT)
    assert_close(filter(operator, 2 * u - 3 * v), 2 * filter(operator, u) - 3 * fused, **TIGHT)
    if kind == "none":  # a tensor is an operator
        assert_close(filter(A, v), dense, **TIGHT)
    assert_close(*gradients(leaves, fused, dense), **TIGHT)
    with sdpa_kernel(SDPBackend.MATH):  # the only one of torch's that has second derivatives
        fused = filter(Softmax(q, k, **options), v)
    first = gradients(leaves, fused, dense, create_graph=True)
    assert_close(*first, **TIGHT)
    assert_close(*gradients(leaves, *(torch.cat([*map(torch.ravel, x)]) for x in first)), **TIGHT)


@all_cases()
def test_low_rank_agrees_with_its_dense_map(case):
    filter, valid = randomized(case), MASKS["padding"]()["mask"]
    left, right, v = (torch.rand(B, H, N, width).double() for width in (4, 4, D))
    A = LowRank(left, right * valid.mT / N, valid)
    J = reference.uniform(valid.expand(B, H, N, N))
    assert_close(filter(A, v), reference_map(case, filter, left @ A.right.mT, J) @ v, **TIGHT)


@all_cases([case for case in CASES if case.starts_as_A])
@all_masks
def test_starts_as_plain_attention(case, kind):
    (q, k, v), filter = qkv(), case.make(H).double()
    A = Softmax(q, k, **MASKS[kind]())
    assert_close(filter(A, v), A @ v)


@all_cases()
def test_padding_equals_truncation(case):
    (q, k, v), filter, m = qkv(), randomized(case), 29
    valid = (torch.arange(N) < m).expand(B, 1, 1, N)
    short = filter(Softmax(q[:, :, :m], k[:, :, :m]), v[:, :, :m])
    assert_close(filter(Softmax(q, k, valid), v)[:, :, :m], short, **TIGHT)


@all_cases()
@given(n=st.integers(1, 11), seed=st.integers(0, 2**16), data=st.data())
def test_causal_stays_causal(case, n, seed, data):
    torch.manual_seed(seed)
    (q, k, v), valid = qkv(n), torch.rand(B, n) < 0.6
    t = data.draw(st.integers(0, n - 1))
    mask = data.draw(st.sampled_from([None, valid[:, None, None, :]]))
    filter, past = randomized(case), slice(0, t + 1)
    future = [torch.cat([x[:, :, past], torch.randn_like(x)[:, :, t + 1 :]], -2) for x in (q, k, v)]
    before, after = (
        filter(Softmax(*pair, mask, is_causal=True), values)[:, :, past]
        for *pair, values in ((q, k, v), future)
    )
    assert_close(before, after)


@all_cases()
@pytest.mark.parametrize("form", FORBIDDEN)
def test_fully_masked_rows_leave_everything_finite(case, form):
    q, k, v = (t.detach().float().requires_grad_() for t in qkv())
    filter = randomized(case).float()
    valid = torch.rand(B, H, N, N) < 0.7
    valid[0, :, 11], valid[1] = False, False
    y = filter(Softmax(q, k, FORBIDDEN[form](valid)), v)
    (grads,) = gradients([q, k, v, *filter.parameters()], y)
    assert all(t.isfinite().all() for t in (y, *grads))


@all_cases()
def test_response_is_the_spectrum_of_the_map(case):
    P = torch.stack([torch.eye(N).double()[torch.randperm(N)] for _ in range(9)]).mean(0)
    A, filter = (P + P.T) / 2, randomized(case)  # all rows and columns sum to 1
    lam, V = torch.linalg.eigh(A)  # ascending: the constant eigenvector is the last
    spectrum = V.T @ matrix(filter, A.expand(1, H, N, N))[0] @ V
    assert_close(spectrum, response(filter, lam, H, dc=N - 1).diag_embed(), **TIGHT)


@all_cases()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast(case, dtype):
    (q, k, v), filter = (t.detach().float() for t in qkv()), case.make(H)
    for options in ({}, {"is_causal": True}, MASKS["padding"]()):
        exact = filter(Softmax(q, k, **options), v)
        half = filter(Softmax(q.to(dtype), k.to(dtype), **options), v.to(dtype))
        with torch.autocast("cpu", dtype):
            mixed = filter(Softmax(q, k, **options), v)
        assert half.dtype == dtype
        for y in (half, mixed):
            assert_close(y.float(), exact, rtol=0.1, atol=0.1)


@all_cases([case for case in CASES if case.name not in ("gfsa-1", "gfsa-7-all")][:5])
def test_compiles_as_one_graph(case):
    torch.compiler.reset()  # else the filters' common code object meets its recompilation limit
    (q, k, v), filter, valid = qkv(), randomized(case), MASKS["padding"]()["mask"]

    def run(q, k, v):
        return filter(Softmax(q, k, valid), v) + filter(Softmax(q, k, is_causal=True), v)

    assert_close(torch.compile(run, fullgraph=True, backend="eager")(q, k, v), run(q, k, v))


@all_cases()
def test_cross_attention(case):
    q, k, v = torch.randn(1, H, 4, D), torch.randn(1, H, 6, D), torch.randn(1, H, 6, D)
    A, filter = Softmax(q, k), case.make(H)
    if case.square_only:
        with pytest.raises(ValueError, match="4 queries and 6 keys"):
            filter(A, v)
    else:
        assert_close(filter(A, v), A @ v)


@all_cases([case for case in CASES if list(case.make(H).parameters())])
def test_refuses_other_heads(case):
    q, k, v = qkv(heads=H + 1)
    with pytest.raises(ValueError, match=rf"filter of {H} heads got values of shape .*, {H + 1},"):
        case.make(H)(Softmax(q, k), v)


def test_a_small_omega_acts_in_half_precision():
    filter = AttnScale(2)
    torch.nn.init.constant_(filter.omega, 1e-3)  # 1 + omega is 1 in bfloat16
    A, v = torch.zeros(1, 2, 9, 9).bfloat16(), torch.full((1, 2, 9, 4), 100.0).bfloat16()
    assert torch.allclose(filter(A, v).float(), torch.full_like(v, -0.1).float(), rtol=0.01)
