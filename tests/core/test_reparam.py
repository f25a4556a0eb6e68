"""EigenSpectrum: its eigenvalues, its equation, and layers that are copied, saved and compiled."""

from copy import deepcopy

import pytest
import torch
from attention_core import EigenSpectrum, SelfAttention
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from tests.core import reference
from tests.core.cases import gradients

B, N, DIM, HEADS = 2, 7, 12, 3
KINDS = ("sharpening", "smoothing", "band-pass")
PSI = "proj.parametrizations.weight.original"
EPS = "proj.parametrizations.weight.0.eps"

all_kinds = pytest.mark.parametrize("kind", KINDS)
all_forms = pytest.mark.parametrize("form", ["inverse", "transpose"])


def tie(host: SelfAttention, **options) -> EigenSpectrum:
    dim = host.proj.in_features
    return EigenSpectrum(dim, **options).tie(host.qkv, host.proj, slice(2 * dim, 3 * dim))


def layer(dim: int = DIM, heads: int = HEADS, **options) -> tuple[SelfAttention, EigenSpectrum]:
    host = SelfAttention(dim, heads)
    return host, tie(host, **options)


def head_maps(host: SelfAttention) -> Tensor:
    """Compute H_g of every head, (heads, d, d), from the two weights alone."""
    dim = len(host.proj.weight)
    W_V, W_O = host.qkv.weight[2 * dim :].T, host.proj.weight.T
    return torch.stack([(W_V[:, g] @ W_O[g]).T for g in torch.arange(dim).chunk(host.num_heads)])


@given(
    width=st.integers(1, 6),
    heads=st.integers(1, 4),
    kind=st.sampled_from(KINDS),
    init=st.sampled_from(["he", "orthogonal"]),
    clamp=st.sampled_from(["hard", "straight_through"]),
    std=st.sampled_from([0.1, 2.0]),
    seed=st.integers(0, 2**16),
)
def test_every_head_has_its_own_eigenvalues_and_zeros(width, heads, kind, init, clamp, std, seed):
    torch.manual_seed(seed)
    dim = max(2 * width * heads, 4)
    host, spectrum = layer(dim, heads, kind=kind, init=init, clamp=clamp, std=std)
    host.double()
    lam = spectrum.eigenvalues().detach()
    kappa = torch.linalg.cond(host.qkv.weight[2 * dim :]).item()
    tolerance = 1e-13 * kappa**2 * lam.abs().max().clamp(min=1).item()
    for H, own in zip(head_maps(host), lam.chunk(heads), strict=True):
        found = torch.linalg.eigvals(H)
        assert found.imag.abs().max() <= tolerance
        expected = torch.cat([own, own.new_zeros(dim - len(own))]).sort().values
        assert_close(found.real.sort().values, expected, rtol=0, atol=tolerance)
    low, high = {"sharpening": (-1, 0), "smoothing": (0, 1)}.get(kind, (lam[-1], lam[-2]))
    assert ((lam >= low) & (lam <= high)).all()


@pytest.mark.parametrize(("layout", "values"), [
    ("interleaved", [1.0, -1.0, 2.0, -2.0, 2.0, -2.5]),
    ("concatenated", [1.0, 2.0, -1.0, -2.0, 2.0, -2.5]),
])  # fmt: skip
def test_band_pass_by_hand(layout, values):
    host, spectrum = layer(6, 2, kind="band-pass", eps=0.5, layout=layout)
    host.load_state_dict({PSI: torch.tensor([1.0, -2.0])}, strict=False)
    assert spectrum.eigenvalues().tolist() == values


def test_the_footnote_keeps_the_signs_but_not_the_range():
    for kind, sign in (("sharpening", -1), ("smoothing", 1)):
        host, _ = layer(kind=kind, form="transpose", init="he", std=1.0)
        host.double()
        found = sign * torch.linalg.eigvalsh(head_maps(host))
        assert_close(head_maps(host), head_maps(host).mT)
        assert found.min() > -1e-12
        assert found.max() > 2  # the requested eigenvalues end at 1


@all_kinds
@all_forms
@pytest.mark.parametrize("init", ["he", "orthogonal"])
def test_equals_the_reference(kind, form, init):
    host, spectrum = layer(kind=kind, form=form, init=init, std=0.8)
    host.double()
    x, psi = torch.randn(B, N, DIM).double(), host.get_parameter(PSI)
    q, k, _ = host.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    lam = reference.eigenvalues(psi, kind, spectrum.eps)
    W, bias = host.qkv.weight, host.qkv.bias
    assert_close(spectrum.eigenvalues(), lam)
    samples, V = zip(x, reference.softmax_map(q, k), strict=True), W[2 * DIM :].T
    expected = torch.stack([reference.tied(row, A, V, lam, form) for row, A in samples])
    # the biases of the values pass through the rows of A, which sum to one
    expected = expected + host.proj.weight @ bias[2 * DIM :] + host.proj.bias
    assert_close(host(x), expected)
    leaves = [W, psi] if spectrum.eps is None else [W, psi, spectrum.eps]
    ours, theirs = gradients(leaves, host(x), expected)
    assert_close(ours, theirs)
    assert all(grad.any() for grad in ours)


def test_a_hard_clip_stops_the_gradient_and_straight_through_passes_it():
    for clamp in ("hard", "straight_through"):
        host, spectrum = layer(clamp=clamp, std=1.0)
        psi = host.get_parameter(PSI)
        outside = (psi < -1) | (psi > 0)
        assert outside.any()
        assert_close(spectrum.eigenvalues(), psi.clamp(-1, 0), rtol=0, atol=0)
        (grad,) = torch.autograd.grad(spectrum.eigenvalues().sum(), psi)
        assert_close(grad, (~outside).float() if clamp == "hard" else torch.ones(DIM))


def test_starting_weights_are_the_papers():
    host, _ = layer(192, 3, init="he")
    V, psi = host.qkv.weight[384:], host.get_parameter(PSI)
    assert_close(V.std().item(), (2 / 192) ** 0.5, rtol=0.02, atol=0)
    assert_close(psi.std().item(), 0.1, rtol=0.2, atol=0)
    assert 0.35 < (psi > 0).float().mean() < 0.65


@all_kinds
def test_its_parameters_are_1d_and_named_once(kind):
    host, _ = layer(kind=kind)
    names = {"qkv.weight", "qkv.bias", "proj.bias", PSI} | ({EPS} if kind == "band-pass" else set())
    assert {name for name, _ in host.named_parameters(remove_duplicate=False)} == names
    assert set(host.state_dict()) == names
    assert all(host.get_parameter(name).ndim == 1 for name in names - {"qkv.weight"})


@all_kinds
@all_forms
def test_a_copy_and_a_state_dict_restore_the_layer_apart_from_it(kind, form):
    host, original = layer(kind=kind, form=form)
    twin, spectrum = layer(kind=kind, form=form)
    x = torch.randn(B, N, DIM)
    before = host(x)
    assert not torch.equal(twin(x), before)
    for assign in (False, True):
        twin.load_state_dict(deepcopy(host.state_dict()), assign=assign)
        assert torch.equal(twin(x), before)
        assert torch.equal(spectrum.eigenvalues(), original.eigenvalues())
    for other in (twin, deepcopy(host)):
        assert torch.equal(other(x), before)
        with torch.no_grad():
            other.qkv.weight[2 * DIM :] *= 2
        assert_close(2 * other.proj.weight if form == "inverse" else other.proj.weight / 2,
                     host.proj.weight)  # fmt: skip
        assert torch.equal(host(x), before)


@pytest.mark.parametrize(("kind", "form"), [("sharpening", "inverse"), ("band-pass", "transpose")])
def test_compiles_as_one_graph(kind, form):
    torch.compiler.reset()
    host, _ = layer(kind=kind, form=form)
    x, leaves = torch.randn(B, N, DIM), list(host.parameters())
    compiled = torch.compile(host, fullgraph=True, backend="aot_eager")
    assert_close(compiled(x), host(x))
    assert_close(*gradients(leaves, compiled(x), host(x)))


@all_kinds
@all_forms
def test_autocast_leaves_the_weight_in_full_precision(kind, form):
    host, _ = layer(kind=kind, form=form, init="orthogonal")
    exact, x = host.proj.weight, torch.randn(B, N, DIM)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(host.proj.weight, exact)
        rough = host(x)
    assert rough.dtype == torch.bfloat16
    assert_close(rough.float(), host(x), rtol=0.05, atol=0.05)


@all_kinds
@pytest.mark.parametrize("init", ["he", "orthogonal"])
def test_ties_a_half_precision_and_follows_its_layer_to_another_dtype(kind, init):
    host, spectrum = layer(kind=kind, init=init)
    before = host.proj.weight
    assert_close(host.double().proj.weight.float(), before, rtol=1e-2, atol=1e-2)
    assert spectrum.eigenvalues().dtype == torch.float64
    tie(half := SelfAttention(DIM, HEADS).bfloat16(), init=init)
    for module in (half, host.bfloat16()):
        assert {p.dtype for p in module.parameters()} == {torch.bfloat16}
        assert module(torch.randn(B, N, DIM).bfloat16()).isfinite().all()
    assert host.to("meta").proj.weight.shape == (DIM, DIM)


def test_refuses_other_widths_and_a_second_tie():
    linear = nn.Linear
    for value, output, rows in [
        (linear(DIM, 3 * DIM), linear(DIM, DIM), slice(30, 40)),
        (linear(DIM, 2 * DIM), linear(2 * DIM, DIM), slice(None)),
        (linear(DIM + 1, DIM), linear(DIM, DIM), slice(None)),
    ]:
        before = value.weight.clone()
        with pytest.raises(ValueError, match=rf"dim {DIM} ties two \({DIM}, {DIM}\) weights, got"):
            EigenSpectrum(DIM).tie(value, output, rows)
        assert torch.equal(value.weight, before)
    host, spectrum = layer()
    for twice in (spectrum, EigenSpectrum(DIM)):
        with pytest.raises(ValueError, match="parametrised already"):
            twice.tie(host.qkv, host.proj, slice(2 * DIM, 3 * DIM))
    with pytest.raises(ValueError, match="parametrised already"):
        EigenSpectrum(DIM).tie(host.proj, linear(DIM, DIM))
