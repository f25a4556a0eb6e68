"""The sliding window against its sums token by token, for windows of any size and any length."""

import pytest
import torch
from attention_core.kernels import Longformer
from torch.testing import assert_close

B, H, N, D = 2, 3, 11, 4


def operands(n: int = N) -> list[torch.Tensor]:
    shapes = [(B, H, n, D), (B, H, n, D), (B, H, n, D)]
    return [torch.randn(shape).double().requires_grad_() for shape in shapes]


def padding(n: int = N) -> torch.Tensor:
    valid = torch.ones(B, n, dtype=torch.bool)
    valid[0, (n + 1) // 2 :], valid[1, 2 % n] = False, False
    return valid


def literal(q, k, v, window, global_tokens, valid):
    """The dense map: every query asks every key whether it is near, or either is global."""
    out = torch.zeros_like(v)
    n = q.shape[2]
    for b, h, i in ((b, h, i) for b in range(B) for h in range(H) for i in range(n)):
        near = [abs(i - j) <= window / 2 or min(i, j) < global_tokens for j in range(n)]
        keys = [j for j in range(n) if near[j] and valid[b, j]]
        if not valid[b, i] or not keys:
            continue
        scores = torch.stack([q[b, h, i] @ k[b, h, j] / D**0.5 for j in keys])
        out[b, h, i] = sum(w * v[b, h, j] for w, j in zip(scores.softmax(0), keys, strict=True))
    return out


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("global_tokens", [0, 1, 3])
@pytest.mark.parametrize(("n", "window"), [(N, 2), (N, 6), (N, 10), (N, 64), (1, 2), (2, 4)])
def test_equals_the_sums_token_by_token(n, window, global_tokens, masked):
    q, k, v = leaves = operands(n)
    mask = padding(n) if masked else None
    valid = torch.ones(B, n, dtype=torch.bool) if mask is None else mask
    A = Longformer(H * D, H, window, global_tokens)(q, k, torch.zeros(B, n, H * D), mask)
    ours, theirs = A @ v, literal(q, k, v, window, global_tokens, valid)
    assert_close(ours, theirs)
    weight = torch.randn_like(v)
    mine, yours = (
        torch.autograd.grad(y, leaves, weight, retain_graph=True) for y in (ours, theirs)
    )
    for ours, theirs in zip(mine, yours, strict=True):
        assert_close(ours, theirs)
    assert_close(A.dense() @ v, A @ v)


def test_by_hand():
    q = k = torch.zeros(1, 1, 5, 2)  # equal scores: the mean of i - 1, i, i + 1 and token 0
    v = torch.tensor([1.0, 2.0, 3.0, 4.0, 10.0]).view(1, 1, 5, 1)
    y = Longformer(2, 1, window=2, global_tokens=1)(q, k, torch.zeros(1, 5, 2)) @ v
    assert_close(y.flatten(), torch.tensor([4.0, 2.0, 2.5, 4.5, 5.0]))


def test_a_wide_window_is_full_attention():
    q, k, v = operands()
    y = Longformer(H * D, H, window=2 * N)(q, k, torch.zeros(B, N, H * D)) @ v
    assert_close(y, torch.nn.functional.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("global_tokens", [0, 2])
def test_padding_equals_truncation(global_tokens):
    longformer, m = Longformer(H * D, H, 4, global_tokens), 7
    (q, k, v), x = operands(), torch.zeros(B, N, H * D)
    short = longformer(q[:, :, :m], k[:, :, :m], x[:, :m])
    padded = longformer(q, k, x, (torch.arange(N) < m).expand(B, N))
    assert_close((padded @ v)[:, :, :m], short @ v[:, :, :m])
    assert not (padded @ v)[:, :, m:].any()
    assert_close(padded.average(v), short.average(v[:, :, :m]))


@pytest.mark.parametrize("window", [0, -2, 1, 7])
def test_refuses_windows_without_a_middle(window):
    with pytest.raises(ValueError, match=f"even and at least 2, half on each side: got {window}"):
        Longformer(H * D, H, window)


def test_refuses_fewer_than_no_global_tokens():
    with pytest.raises(ValueError, match="global_tokens must be 0 or more, got -1"):
        Longformer(H * D, H, global_tokens=-1)


def test_refuses_masks_of_pairs():
    q, k, _ = operands()
    with pytest.raises(ValueError, match="keys alone"):
        Longformer(H * D, H)(q, k, torch.zeros(B, N, H * D), torch.ones(B, 1, N, N).bool())
