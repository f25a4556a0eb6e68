"""Contract of all operators: their products, their averages, and their dense maps."""

import pytest
import torch
from attention_core import Diagonal, Host, LowRank, Softmax
from attention_core.operators import FormedSoftmax, allowed_pairs, average, masked_mean
from torch.testing import assert_close

from tests.core import reference
from tests.core.cases import FORBIDDEN, MASKS, B, D, H, N, gradients, qkv


def random_valid(*shape):
    valid = torch.rand(shape) < 0.6
    valid[..., 0] = True
    return valid


ALL_MASKS = MASKS | {
    "pairs": lambda: {"mask": random_valid(B, H, N, N)},
    "heads": lambda: {"mask": random_valid(1, H, 1, N)},
    "causal padding": lambda: {"mask": random_valid(B, 1, 1, N), "is_causal": True},
    "causal bias": lambda: {"mask": torch.randn(1, H, N, N).double(), "is_causal": True},
    "samples": lambda: {"mask": torch.tensor([True, False])[:, None, None, None]},
    "float padding": lambda: {"mask": FORBIDDEN["finfo.min"](random_valid(B, 1, 1, N))},
}
all_masks = pytest.mark.parametrize("kind", ALL_MASKS)


@all_masks
def test_softmax_and_its_average_are_the_literal_maps(kind):
    (q, k, v), options = qkv(), ALL_MASKS[kind]()
    A, expected = Softmax(q, k, **options), reference.softmax_map(q, k, **options)
    assert_close(A.dense(), expected)
    assert_close(A @ v, expected @ v)
    assert_close(A @ A.eye(), expected)
    J = reference.uniform(reference.allowed(q, k, options.get("mask"), "is_causal" in options))
    mean = average(A, v)
    assert_close(mean.expand_as(v), J @ v)
    assert (mean.shape[-2] == 1) == ("causal" not in kind and kind not in {"bias", "pairs"})


@all_masks
@pytest.mark.parametrize(("softcap", "has_sinks"), [(None, True), (0.7, False), (0.7, True)])
def test_capped_logits_and_sinks_are_the_literal_map(kind, softcap, has_sinks):
    (q, k, v), options = qkv(), ALL_MASKS[kind]()
    sinks = torch.randn(H).double().requires_grad_() if has_sinks else None
    A = FormedSoftmax(q, k, **options, softcap=softcap, sinks=sinks)
    logits = q @ k.mT * options.get("scale", D**-0.5)
    logits = logits if softcap is None else softcap * (logits / softcap).tanh()
    mask, is_causal = options.get("mask"), "is_causal" in options
    if mask is not None and mask.dtype != torch.bool:
        logits = logits + mask.masked_fill(~allowed_pairs(mask), 0.0)
    weights = logits.exp() * reference.allowed(q, k, mask, is_causal)
    total = weights.sum(-1, keepdim=True).clamp(min=1e-300)
    expected = weights / (total if sinks is None else total + sinks[:, None, None].exp())
    assert_close(A.dense(), expected)
    assert_close(A @ (A @ v), expected @ (expected @ v))
    assert_close(*gradients([q, k, v] if sinks is None else [q, k, v, sinks], A @ v, expected @ v))


def test_a_map_drops_entries_anew_or_once():
    (q, k, v), sinks = qkv(), torch.zeros(H).double()
    for A in (FormedSoftmax(q, k, dropout=0.5, sinks=sinks), Softmax(q, k, dropout=0.5)):
        assert not torch.equal(A @ v, A @ v)
        A.shares_dropout = True
        with torch.no_grad():
            A @ v  # a look, which takes no gradient from what follows
        y = A @ v
        assert torch.equal(A @ v, y)
        assert torch.autograd.grad(y.sum(), q)[0].any()


def test_an_average_counts_the_given_pairs():
    q, k, v = qkv()
    regions = torch.arange(N) // 10
    allowed = regions == regions[:, None]
    bias = torch.where(allowed, 0.0, -100.0).double()
    expected = allowed.double() / allowed.sum(-1, keepdim=True) @ v
    assert_close(average(Softmax(q, k, bias, allowed=allowed), v), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", FORBIDDEN)
@pytest.mark.parametrize("is_causal", [False, True])
def test_fully_masked_rows_are_zero(dtype, form, is_causal):
    q, k, v = (t.detach().to(dtype) for t in qkv())
    valid = random_valid(B, 1, N, N)
    valid[0, :, 7], valid[1] = False, False
    A = Softmax(q, k, FORBIDDEN[form](valid), is_causal)
    for y in (A @ v, A.dense(), average(A, v)):
        assert y.dtype == dtype
        assert not y[0, :, 7].any()
        assert not y[1].any()
        assert y[0, :, 8].any()


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_lowest_number_of_any_library_and_dtype_forbids(narrow):
    (q, k, v), valid = qkv(), random_valid(B, 1, 1, N)
    exact = Softmax(q, k, valid)
    for low in (-1e4, torch.finfo(narrow).min, -torch.inf):
        mask = torch.zeros(B, 1, 1, N, dtype=narrow).masked_fill(~valid, low)
        assert torch.equal(allowed_pairs(mask), valid)
        assert_close(Softmax(q, k, mask) @ v, exact @ v)
        assert_close(average(Softmax(q, k, mask), v), average(exact, v))
    assert allowed_pairs(torch.tensor([0, -100.0, torch.nan], dtype=narrow)).all()


def test_dropout_is_fresh_and_unbiased():
    n, p = 64, 0.25
    A = Softmax(torch.zeros(1, 1, n, 4), torch.zeros(1, 1, n, 4), dropout=p)
    ones = torch.ones(1, 1, n, 200)
    once, again = A @ ones, A @ ones
    assert not torch.equal(once, again)
    rows = torch.stack([(A @ ones)[..., 0] for _ in range(200)])
    # a row keeps Binomial(n, 1 - p) entries of weight 1 / n / (1 - p)
    assert_close(rows.mean(), torch.tensor(1.0), rtol=0, atol=0.01)
    assert_close(rows.std(), torch.tensor((p / (1 - p) / n) ** 0.5), rtol=0.1, atol=0)
    assert_close(A.dense().sum(-1), torch.ones(1, 1, n))
    assert_close(average(A, ones), ones[:, :, :1])


def test_low_rank():
    left, right, v = torch.rand(B, H, 4, 3), torch.rand(B, H, 6, 3), torch.randn(B, H, 6, D)
    A = LowRank(left, right)
    assert_close(A.dense(), left @ right.mT)
    assert_close(A @ v, A.dense() @ v)
    valid = torch.arange(6) < 4
    mean = average(LowRank(left, right, valid.expand(B, 1, 1, 6)), v)
    assert_close(mean, v[:, :, :4].mean(-2, keepdim=True))


def test_diagonal():
    lam, v = torch.rand(H, N), torch.randn(H, N, D)
    A = Diagonal(lam, dc=4)
    assert_close(A.dense(), torch.diag_embed(lam))
    assert_close(A @ v, A.dense() @ v)
    assert_close(average(A, v), torch.eye(N)[4].diag() @ v)
    assert not average(Diagonal(lam), v).any()


def test_host():
    (q, k, v), valid = qkv(), MASKS["padding"]()["mask"]
    theirs = Softmax(q, k, valid)
    A = Host(lambda u: theirs @ u, like=v, average=theirs.average)
    assert_close(A.dense(), theirs.dense())
    assert_close(average(A, v), average(theirs, v))
    assert_close(average(Host(lambda u: u, like=v), v), v.mean(-2, keepdim=True))


def test_masked_mean():
    v, valid = torch.randn(B, N, D).double(), torch.rand(B, 1, N) < 0.5
    valid[1] = False
    assert_close(masked_mean(v, valid)[0, 0], v[0, valid[0, 0]].mean(0), rtol=1e-14, atol=1e-14)
    assert not masked_mean(v, valid)[1].any()
    many = masked_mean(torch.ones(1, 4099, 1).bfloat16(), torch.ones(1, 1, 4099).bool())
    assert_close(many.float(), torch.ones(1, 1, 1), rtol=0.01, atol=0)
