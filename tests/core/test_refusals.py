"""Wrong arguments of the public API, each refused by one sentence.

A constructor has a line in CONSTRUCTORS, or a test fails: each of its arguments with its kind, or
with its own wrong values. SHAPES has the tensors that a forward pass or a function refuses.
"""

import inspect
import math
import re
from typing import Any

import attention_core
import pytest
import torch
from attention_core import (
    GFSA,
    AttnScale,
    CenteredAttention,
    ContraNorm,
    Diagonal,
    EigenSpectrum,
    FeatScale,
    Host,
    LayerScale,
    LowRank,
    Plain,
    Polynomial,
    ReAttention,
    SelfAttention,
    Softmax,
    attach,
    checks,
    detach,
    kernels,
    penalties,
    spectral,
)
from attention_core.operators import masked_mean
from torch import nn

NAN, INF = math.nan, math.inf
HEADS = {"num_heads": "size"}
KERNEL = {"dim": "size", "num_heads": "size"}
# the wrong values of a kind of argument, and the text of those that it allows
KINDS: dict[str, tuple[str, list[Any]]] = {
    "size": ("a whole number of at least 1", [0, True, 2.0, "x", None]),
    "count": ("a whole number of at least 0", [-1, 2.0]),
    "even": ("even", [7]),
    "even size": ("a whole number of at least 2", [0, 2.0]),
    "number": ("a finite number", [NAN, INF, -INF, 10**400, True, "x", None]),
    "nonnegative": ("a number of at least 0", [-0.1, NAN, INF, "x"]),
    "positive": ("a number above 0", [0, -1, NAN, INF, "x"]),
    "probability": ("a number from 0 to 1", [-0.1, 2, NAN, "x"]),
    "below one": ("below 1", [1, 1.0]),
    "gain": ("a whole number from 1 to 2", [0, 3, True, 1.0]),
    "flag": ("True or False", [0, 1, "x", None]),
    "optional flag": ("True or False", [0, 1, "x"]),
    "factory": ("callable", [3, "x"]),
}


def _choose(*allowed: str) -> tuple[str, list[Any]]:
    return f"one of {', '.join(allowed)}", ["other", 3, None, allowed]


BASIS = _choose("monomial", "jacobi", "chebyshev", "legendre")
DRAWN = _choose("excluded", "published")
CONSTRUCTORS: dict[Any, dict[str, Any]] = {
    Plain: HEADS,
    CenteredAttention: HEADS,
    AttnScale: HEADS | {"masked": "flag"},
    ReAttention: HEADS | {"scale": "number"},
    GFSA: HEADS
    | {"K": "size", "w0": "number", "w1": "number", "wK": "number"}
    | {"learn": ("one of w0, w1, wK", [["w2"], "wK", 3, [3], None])},
    Polynomial: HEADS | {"K": "size", "basis": BASIS, "a": "number", "b": "number"},
    FeatScale: {"dim": "size", "gain": "gain"},
    LayerScale: {"dim": "size", "init": "number"},
    ContraNorm: {"dim": "size", "scale": "nonnegative", "temperature": "positive"}
    | dict.fromkeys(["dual", "identity", "learnable", "positive", "pre_norm", "norm"], "flag")
    | {"axis": _choose("token", "feature", "channel")},
    EigenSpectrum: {"dim": "size", "kind": _choose("sharpening", "smoothing", "band-pass")}
    | {"form": _choose("inverse", "transpose"), "init": _choose("he", "orthogonal")}
    | {"clamp": _choose("hard", "straight_through"), "std": "nonnegative", "eps": "nonnegative"}
    | {"layout": _choose("interleaved", "concatenated")},
    SelfAttention: KERNEL
    | dict.fromkeys(["filter", "kernel", "tokens", "reparam"], "factory")
    | {"bias": "flag", "dropout": ["probability", "below one"], "float32": "flag"},
    kernels.AGF: KERNEL
    | {"K": "size", "basis": BASIS, "a": "number", "b": "number", "pin_theta0": "flag"}
    | {"gamma": "nonnegative", "bias": "flag"}
    | {"penalty_variant": _choose("released", "paper", "padded")}
    | {"rho": _choose("softmax", "sigmoid", "tanh", "none")}
    | {"singular_values": _choose("filtered", "generated", "learned", "ones")},
    kernels.Cosformer: KERNEL | {"horizon": _choose("real", "padded"), "eps": "positive"},
    kernels.Flowformer: KERNEL
    | {"features": _choose("sigmoid", "relu"), "clamp": "flag", "eps": "positive"},
    kernels.LinearAttention: KERNEL | {"normalise": "flag", "eps": "nonnegative"},
    kernels.Linformer: KERNEL
    | {"length": "size", "rank": "size", "share_kv": "flag", "per_head": "flag"}
    | {"init": _choose("normal", "uniform"), "share_layers": "optional flag"},
    kernels.Longformer: KERNEL | {"window": ["even", "even size"], "global_tokens": "count"},
    kernels.Nystromformer: KERNEL
    | {"landmarks": "size", "iterations": "size", "init": _choose("per_matrix", "original")}
    | {"kernel_size": ["count", ("odd, or 0 for no convolution", [2])]}
    | {"segments": _choose("real", "published")},
    kernels.Performer: KERNEL
    | {"features": "size", "activation": _choose("softmax", "relu"), "eps": "nonnegative"}
    | {"scaled": _choose("once", "twice"), "mask_keys": _choose("removed", "zeroed")}
    | {"redraw_every": "count"},
    kernels.Primalformer: KERNEL
    | {"length": "size", "rank": "size", "multiplier": "size", "eta": "nonnegative"}
    | {"loss": _choose("sample", "batch"), "trace": _choose("raw", "projected")}
    | {"init": _choose("per_head", "released")}
    | {"padding": _choose("excluded", "published", "zeroed")},
    kernels.Reformer: KERNEL
    | {"hashes": "size", "chunk": "size", "buckets": ["even", "even size"]}
    | {"max_buckets": ["even", "even size"], "scale_logits": "flag"}
    | {"redraw": _choose("training", "always", "never"), "ring": _choose("sample", "joined")},
    kernels.Singularformer: KERNEL
    | {"rank": "size", "gamma": "nonnegative", "padding": DRAWN, "add_scores": "optional flag"},
    kernels.SOFT: KERNEL
    | {"ratio": "size", "iterations": "size"}
    | {"kernel_size": ["count", ("odd, or 0 for no convolution", [2])]},
    kernels.YOSO: KERNEL
    | {
        "tau": "size",
        "scale": ["positive", ("a number from 0 to 1", [1.5])],
        "gradient": _choose("exact", "surrogate"),
    }
    | {"block": "size"},
}
REQUIRED = {"dim": 12, "num_heads": 3, "scale": 0.1}
TENSORS = {Softmax, LowRank, Diagonal, Host}  # made from tensors: see SHAPES
CASES = [
    (made, argument, value, allowed)
    for made, arguments in CONSTRUCTORS.items()
    for argument, kinds in arguments.items()
    for kind in (kinds if isinstance(kinds, list) else [kinds])
    for allowed, values in [KINDS[kind] if isinstance(kind, str) else kind]
    for value in values
]


def list_classes() -> set[Any]:
    public = {getattr(home, name) for home in (attention_core, kernels) for name in home.__all__}
    return {c for c in public if isinstance(c, type) and issubclass(c, nn.Module)}


def test_each_constructor_has_each_of_its_arguments_in_the_table():
    assert set(CONSTRUCTORS) == list_classes()
    for made, arguments in CONSTRUCTORS.items():
        assert set(arguments) == set(inspect.signature(made).parameters), made
    operators = {made for made in map(attention_core.__dict__.get, attention_core.__all__)}
    assert operators > TENSORS


@pytest.mark.parametrize(
    ("made", "argument", "value", "allowed"),
    CASES,
    ids=[f"{made.__name__}-{argument}-{str(value)[:20]}" for made, argument, value, _ in CASES],
)
def test_constructors_refuse_wrong_arguments_in_one_sentence(made, argument, value, allowed):
    needed = {k: v for k, v in REQUIRED.items() if k in inspect.signature(made).parameters}
    needed = {k: v for k, v in needed.items() if k != "scale" or made is ContraNorm}
    with pytest.raises((TypeError, ValueError)) as refused:
        made(**needed | {argument: value})
    text = str(refused.value)
    assert re.fullmatch(rf"{made.__name__}\.{argument} must be {re.escape(allowed)}, got .+", text)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if "number" in allowed and not is_number:
        assert refused.type is TypeError
    if "float" not in str(type(value)) and is_number and "number" in allowed:
        assert refused.type is ValueError


def test_a_width_is_a_multiple_of_the_heads():
    for made in (SelfAttention, *(c for c in CONSTRUCTORS if c.__module__.count(".kernels."))):
        with pytest.raises(ValueError, match=r"dim must be a multiple of num_heads, got 10 and 4"):
            made(10, 4)
    for dim in (2, 7):
        with pytest.raises(ValueError, match=f"an even dim of at least 4, got {dim}"):
            EigenSpectrum(dim, kind="band-pass")


def test_a_long_argument_is_cut_to_one_line():
    with pytest.raises(TypeError) as refused:
        GFSA(3, w0=torch.zeros(99, 99))
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < 120


SLOTS = {
    "filter": [
        *(lambda heads: None, lambda heads: 3, lambda heads: GFSA, FeatScale, nn.Identity),
        lambda heads: kernels.Cosformer(12, heads),
    ],
    "kernel": [GFSA, lambda dim, heads: None, lambda dim, heads: FeatScale(dim)],
    "tokens": [GFSA, lambda dim: None, lambda dim: kernels.Cosformer(dim, 3), nn.Identity],
    "reparam": [GFSA, lambda dim: None, lambda dim: 3, FeatScale],
}


@pytest.mark.parametrize(("slot", "make"), [(s, make) for s in SLOTS for make in SLOTS[s]])
def test_slots_refuse_mechanisms_of_another_kind(slot, make):
    with pytest.raises(TypeError, match=f"^{slot} must make a module that .*, got .+$"):
        SelfAttention(12, 3, **{slot: make})


class Variadic(nn.Module):
    def forward(self, *args):
        return args[0] @ args[1]


def test_slots_take_modules_of_other_signatures():
    for made in (Variadic(), torch.compile(GFSA(2))):
        assert checks.check_mechanism("filter", made) is made
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'scale'"):
        SelfAttention(12, 3, tokens=ContraNorm)


Q = torch.zeros(2, 3, 7, 4)
X = torch.zeros(2, 7, 12)
A = torch.full((2, 3, 7, 7), 1 / 7)
BAD = torch.ones(2, 6, dtype=torch.bool)
SHAPES: list[tuple[Any, type[Exception], str]] = [
    (lambda: Softmax(Q, [1]), TypeError, "Softmax.k must be a tensor of at least 2 axes, got [1]"),
    (lambda: Softmax(Q, Q[..., :3]), ValueError, "(2, 3, 7, 4) and (2, 3, 7, 3)"),
    (lambda: Softmax(Q, Q, BAD), ValueError, "shape (2, 3, 7, 7) got a mask of shape (2, 6)"),
    (lambda: Softmax(Q, Q, dropout=2), ValueError, "Softmax.dropout must be a number from 0 to 1"),
    (lambda: Softmax(Q, Q, scale=INF), ValueError, "Softmax.scale must be a finite number"),
    (lambda: Softmax(Q, Q) @ Q[:, :, :6], ValueError, "7 keys got values of shape (2, 3, 6, 4)"),
    (lambda: LowRank(Q, 3), TypeError, "LowRank.right must be a tensor"),
    (lambda: LowRank(Q, Q[..., :2]), ValueError, "(2, 3, 7, 4) and (2, 3, 7, 2)"),
    (lambda: Diagonal(torch.zeros(3), dc=3), ValueError, "Diagonal.dc must be a whole number from"),
    (lambda: Diagonal(torch.zeros(3)) @ Q, ValueError, "3 keys got values of shape (2, 3, 7, 4)"),
    (lambda: Host(3, Q), TypeError, "Host.apply must be callable, got 3"),
    (lambda: Host(len, 3), TypeError, "Host.like must be a tensor"),
    (lambda: GFSA(3)(A, Q[:, :, :6]), ValueError, "7 keys got values of shape (2, 3, 6, 4)"),
    (lambda: GFSA(3)(A, Q[:, :2]), ValueError, "3 heads got values of shape (2, 2, 7, 4)"),
    (lambda: SelfAttention(12, 3)(X[..., :9]), ValueError, "(batch, tokens, 12), got the shape"),
    (lambda: SelfAttention(12, 3)(None), TypeError, "SelfAttention.tokens must be a tensor"),
    (lambda: SelfAttention(12, 3)(X, BAD), ValueError, "got (2, 6) of torch.bool"),
    (lambda: SelfAttention(12, 3)(X, A[..., :6]), ValueError, "got a mask of shape (2, 3, 7, 6)"),
    (lambda: FeatScale(12)(X[..., :9]), ValueError, "(batch, tokens, 12), got the shape (2, 7, 9)"),
    (lambda: LayerScale(12)(X[..., :9]), ValueError, "LayerScale takes tokens (batch, tokens, 12)"),
    (lambda: ContraNorm(12, 1)(X, edges=A[:, 0]), ValueError, "edges must be boolean, got torch"),
    (lambda: kernels.AGF(12, 3)(Q, Q[:1], X), ValueError, "(2, 3, 7, 4) and (1, 3, 7, 4)"),
    (lambda: kernels.AGF(12, 3)(Q, Q, X, BAD), ValueError, "(batch, 7) or (batch, 1, 1, 7) of its"),
    (lambda: masked_mean(Q, BAD[:, None, None]), ValueError, "6 keys got values of shape (2, 3,"),
    (lambda: kernels.orthogonality_penalty(Q, 3), TypeError, "orthogonality_penalty.V must be a"),
    (lambda: kernels.orthogonality_penalty(Q, Q, "x"), ValueError, "penalty_variant must be one"),
    (lambda: EigenSpectrum(4).tie(nn.Identity(), nn.Linear(4, 4)), TypeError, "an nn.Linear, got"),
    (lambda: spectral.matrix(3, A), TypeError, "spectral.matrix.filter must be callable, got 3"),
    (lambda: spectral.matrix(Plain(), A[0, 0, 0]), ValueError, "A must be a tensor of at least 2"),
    (lambda: spectral.response(Plain(), A[0, 0, 0], 0), ValueError, "num_heads must be a whole"),
    (lambda: spectral.response(Plain(), A[0, 0, 0], 1, 9), ValueError, "dc must be a whole number"),
    (lambda: spectral.filter_singular_values(A, 2), TypeError, "function must be callable, got 2"),
    (lambda: spectral.filter_singular_values(A, torch.sum), ValueError, "gains of the shape (2,"),
    (lambda: spectral.power_singular_values(A, "x"), TypeError, "alpha must be a finite number"),
    (lambda: spectral.power_singular_values(0 * A, -1), ValueError, "-1 needs a map of full rank"),
    (lambda: spectral.hfc_lfc(X, num_low=0), ValueError, "num_low must be a whole number"),
    (
        lambda: spectral.hfc_lfc(X, num_low=4),
        ValueError,
        "num_low must be odd, as frequencies above",
    ),
    (lambda: spectral.singular_response(A, A[0]), ValueError, "got (2, 3, 7, 7) and (3, 7, 7)"),
    (lambda: spectral.hfc_lfc(X, BAD), ValueError, "hfc_lfc takes a boolean mask (..., 7)"),
    (lambda: spectral.token_cosine(X, signed=1), TypeError, "signed must be True or False, got 1"),
    (
        lambda: spectral.dominating_eigenvalue_shares(X[0, 0], X[0, 0], tolerance=-1),
        ValueError,
        "tolerance must be a number of at least 0",
    ),
    (lambda: attach(nn.Identity(), position="nope"), ValueError, "position must be one of attent"),
    (lambda: detach(None), TypeError, "detach.model must be an nn.Module, got None"),
    (lambda: penalties(3).__enter__(), TypeError, "penalties.model must be an nn.Module, got 3"),
]


@pytest.mark.parametrize(("call", "error", "fragment"), SHAPES, ids=[case[2] for case in SHAPES])
def test_calls_are_refused_with_their_shapes(call, error, fragment):
    with pytest.raises(error, match=re.escape(fragment)) as refused:
        call()
    assert len(str(refused.value).splitlines()) == 1
