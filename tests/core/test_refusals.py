"""Wrong arguments of the public API, each refused by one sentence."""

import inspect
import math
import re
from typing import Any

import pytest
import torch
from attention_core import EigenSpectrum, SelfAttention, attach, detach, kernels, spectral
from attention_core.filters import GFSA, AttnScale, Plain, Polynomial
from attention_core.operators import Diagonal, LowRank, Softmax
from attention_core.tokens import ContraNorm, FeatScale
from torch import nn

INF = math.inf
# constructors, an argument, and wrong values of it
WRONG: list[tuple[Any, str, list[Any]]] = [
    (GFSA, "K", [0, -1, True, 2.0, "x"]),
    (GFSA, "learn", [["w2"], "wK", 3]),
    (GFSA, "w0", [math.nan, INF, True, "x"]),
    (Polynomial, "basis", ["other", 3, ("x",)]),
    (FeatScale, "gain", [0, 3]),
    (ContraNorm, "temperature", [0.0, -1.0]),
    (SelfAttention, "dropout", [-0.1, 1.0, 2.0]),
    (kernels.Longformer, "window", [0, 7]),
    (kernels.Nystromformer, "kernel_size", [2]),
    (kernels.Performer, "eps", [-1.0]),
    (kernels.YOSO, "scale", [0.0, 1.5]),
]


@pytest.mark.parametrize(
    ("made", "argument", "value"),
    [(made, argument, value) for made, argument, values in WRONG for value in values],
)
def test_constructors_refuse_wrong_arguments_in_one_sentence(made, argument, value):
    needed = {"dim": 12, "num_heads": 3, "scale": 0.1}
    names = inspect.signature(made).parameters
    needed = {k: v for k, v in needed.items() if k in names and names[k].default is names[k].empty}
    message = rf"^{made.__name__}\.{argument} must be .+, got .+$"
    with pytest.raises((TypeError, ValueError), match=message):
        made(**needed | {argument: value})


def test_a_width_is_a_multiple_of_the_heads():
    for made in (SelfAttention, kernels.AGF, kernels.Performer, kernels.Longformer):
        with pytest.raises(ValueError, match=r"dim must be a multiple of num_heads, got 10 and 4"):
            made(10, 4)
    for dim in (2, 7):
        with pytest.raises(ValueError, match=f"an even dim of at least 4, got {dim}"):
            EigenSpectrum(dim, kind="band-pass")


@pytest.mark.parametrize(("slot", "make", "reason"), [
    ("filter", lambda heads: None, "filter must make a module, got None"),
    ("filter", kernels.AGF, "SelfAttention.filter got AGF, which .*: pass kernel=AGF"),
    ("filter", 3, "SelfAttention.filter must be callable, got 3"),
    ("kernel", lambda dim, heads: None, "kernel must make a module, got None"),
    ("kernel", GFSA, "pass filter=GFSA"),
    ("tokens", ContraNorm, "missing 1 required positional argument: 'scale'"),
    ("reparam", FeatScale, "pass tokens=FeatScale"),
    ("reparam", lambda dim: nn.Identity(), "reparam must make a module that has a method tie"),
])  # fmt: skip
def test_slots_refuse_mechanisms_of_another_kind(slot, make, reason):
    with pytest.raises(TypeError, match=reason):
        SelfAttention(12, 3, **{slot: make})


Q = torch.zeros(2, 3, 7, 4)
X = torch.zeros(2, 7, 12)
RAGGED = torch.nested.nested_tensor([X[0], X[1, :5]])
A = torch.full((2, 3, 7, 7), 1 / 7)
BAD = torch.ones(2, 6, dtype=torch.bool)
SHAPES: list[tuple[Any, type[Exception], str]] = [
    (lambda: Softmax(Q, [1]), TypeError, "Softmax.k must be a tensor of at least 2 axes, got [1]"),
    (lambda: Softmax(Q, Q[..., :3]), ValueError, "(2, 3, 7, 4) and (2, 3, 7, 3)"),
    (lambda: Softmax(Q, Q, BAD), ValueError, "shape (2, 3, 7, 7) got a mask of shape (2, 6)"),
    (lambda: Softmax(Q, Q, dropout=2), ValueError, "Softmax.dropout must be a number from 0 to 1"),
    (lambda: Softmax(Q, Q) @ Q[:, :, :6], ValueError, "7 keys got values of shape (2, 3, 6, 4)"),
    (lambda: LowRank(Q, Q[..., :2]), ValueError, "(2, 3, 7, 4) and (2, 3, 7, 2)"),
    (lambda: Diagonal(torch.zeros(3), dc=3), ValueError, "Diagonal.dc must be a whole number from"),
    (lambda: SelfAttention(12, 3)(X[:1], X[..., 0] > 0), ValueError, "(1, 7) of its tokens, got"),
    (lambda: kernels.AGF(12, 3)(Q[:1], Q[:1], X[:1], X[..., 0] > 0), ValueError, "mask (1, 7) or"),
    (lambda: SelfAttention(12, 3)(RAGGED), ValueError, "SelfAttention takes no nested tensor: pad"),
    (lambda: SelfAttention(12, 3)(X, A[..., :6]), ValueError, "got a mask of shape (2, 3, 7, 6)"),
    (lambda: AttnScale(3, False)(Softmax(Q, Q, None, True), Q), ValueError, "cannot be causal"),
    (lambda: AttnScale(3, False)(Softmax(Q, Q, torch.eye(7) > 0), Q), ValueError, "keys alone"),
    (lambda: FeatScale(12)(X[..., :9]), ValueError, "(batch, tokens, 12), got the shape (2, 7, 9)"),
    (lambda: ContraNorm(12, 1)(X, edges=A[:, 0]), ValueError, "edges must be boolean, got torch"),
    (lambda: kernels.AGF(12, 3)(Q, Q[:1], X), ValueError, "(2, 3, 7, 4) and (1, 3, 7, 4)"),
    (lambda: spectral.response(Plain(), A[0, 0, 0], 0), ValueError, "num_heads must be a whole"),
    (lambda: spectral.singular_response(A, A[0]), ValueError, "got (2, 3, 7, 7) and (3, 7, 7)"),
    (lambda: spectral.hfc_lfc(X, BAD), ValueError, "hfc_lfc takes a boolean mask (..., 7)"),
    (lambda: attach(nn.Identity(), position="nope"), ValueError, "position must be one of attent"),
    (lambda: detach(None), TypeError, "detach.model must be an nn.Module, got None"),
]


@pytest.mark.parametrize(("call", "error", "fragment"), SHAPES, ids=[case[2] for case in SHAPES])
def test_calls_are_refused_with_their_shapes(call, error, fragment):
    with pytest.raises(error, match=re.escape(fragment)) as refused:
        call()
    assert len(str(refused.value).splitlines()) == 1
