"""FeatScale, LayerScale and ContraNorm against their equations, sample by sample."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from attention_core import ContraNorm, FeatScale, LayerScale
from torch.testing import assert_close

from tests.core import reference

B, N, D, M = 3, 13, 7, 9


def tokens(n: int = N) -> torch.Tensor:
    return torch.randn(B, n, D).double()


def mask() -> torch.Tensor:
    return (torch.arange(N) < M).expand(B, N)


@pytest.mark.parametrize("gain", [1, 2])
def test_featscale_is_its_equation(gain):
    z, layer = tokens(), FeatScale(D, gain).double()
    assert torch.equal(layer(z), z)
    torch.nn.init.normal_(layer.s)
    torch.nn.init.normal_(layer.t)
    assert_close(layer(z), torch.stack([reference.featscale(x, layer.s, layer.t, gain) for x in z]))
    assert_close(layer(z, mask())[:, :M], layer(z[:, :M]))
    assert layer(z, torch.zeros(B, N, dtype=torch.bool)).isfinite().all()


def test_layerscale_is_its_equation():
    z, layer = tokens(), LayerScale(D)
    assert torch.equal(layer.gamma, torch.full((D,), 1e-4))
    layer.double()
    torch.nn.init.normal_(layer.gamma)
    assert_close(layer(z), z @ torch.diag(layer.gamma))
    assert torch.equal(layer(z, mask()), layer(z))


FLAGS = ["dual", "identity", "pre_norm", "learnable", "positive"]


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("flags", product([False, True], repeat=5), ids=lambda f: f"{f}")
def test_contranorm_is_its_equation(flags, temperature):
    options = dict(zip(FLAGS, flags, strict=True)) | {"temperature": temperature}
    x, layer = tokens(), ContraNorm(D, 0.2, **options).double()
    c = None
    if options.pop("learnable"):
        assert_close(learned(layer), torch.full((D,), 0.2).double(), rtol=1e-6, atol=0)
        torch.nn.init.normal_(layer.scale_param)
        c = learned(layer)
    options.pop("positive")
    z = torch.stack([reference.contranorm(row, 0.2, **options, c=c) for row in x])
    assert_close(layer(x), F.layer_norm(z, (D,), eps=1e-6))


def learned(layer: ContraNorm) -> torch.Tensor:
    return layer.scale_param.exp() if layer.positive else layer.scale_param.clone()


@pytest.mark.parametrize("learnable", [False, True])
def test_scale_zero_is_a_layer_norm(learnable):
    x, layer = tokens().float(), ContraNorm(D, 0.0, learnable=learnable, positive=learnable)
    assert torch.equal(layer(x), F.layer_norm(x, (D,), eps=1e-6))
    assert {name for name, _ in layer.named_parameters()} == {"norm.weight", "norm.bias"}
    assert torch.equal(ContraNorm(D, 0.0, norm=False)(x), x)


@pytest.mark.parametrize("dual", [False, True])
def test_contranorm_masks_equal_truncation(dual):
    x, layer = tokens(), ContraNorm(D, 0.5, dual=dual, norm=False, identity=True)
    assert_close(layer(x, mask())[:, :M], layer(x[:, :M]))
    assert_close(layer(x, torch.zeros(B, N, dtype=torch.bool)), 1.5 * x)


def test_contranorm_leaves_joined_nodes_alone():
    x, edges = tokens(), torch.rand(B, N, N) < 0.4
    edges[0, 3] = True  # joined to all: nothing is left to contrast with
    layer = ContraNorm(D, 0.5, norm=False, identity=True)
    unit = F.normalize(x, dim=-1)
    weights = (unit @ unit.mT).exp() * ~edges
    W = weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)
    assert_close(layer(x, edges=edges), 1.5 * x - 0.5 * W @ x)
    assert_close(layer(x, mask(), edges)[:, :M], layer(x[:, :M], edges=edges[:, :M, :M]))


@pytest.mark.parametrize("dual", [False, True])
def test_contranorm_over_features_is_the_released_second_version(dual):
    """Tokens are normalized over channels, and the map of channels acts from the right."""
    x = tokens()
    layer = ContraNorm(D, 0.5, 0.3, norm=False, identity=True, axis="feature", dual=dual)
    for row, z in zip(x, layer(x), strict=True):
        unit = row / row.norm(dim=1, keepdim=True)
        W = torch.softmax(unit.T @ unit / 0.3, dim=1)
        W = W + torch.softmax(unit.T @ unit / 0.3, dim=0) if dual else W
        assert_close(z, 1.5 * row - 0.5 * row @ W)


def test_contranorm_over_channels_takes_no_mask():
    x, layer = tokens(), ContraNorm(D, 0.5, norm=False, identity=True, axis="channel")
    expected = torch.stack([reference.contranorm(row.T, 0.5, identity=True).T for row in x])
    assert_close(layer(x), expected)
    with pytest.raises(ValueError, match="neither a mask nor edges"):
        layer(x, mask())


@pytest.mark.parametrize("T", [FeatScale(D), LayerScale(D), ContraNorm(D, 1, 0.5, learnable=True)])
def test_tokens_compile_and_keep_their_dtype(T):
    assert all(p.ndim == 1 for p in T.parameters())
    x = tokens().float() * mask().unsqueeze(-1)
    compiled = torch.compile(T, fullgraph=True, dynamic=True, backend="eager")
    assert_close(compiled(x, mask()), T(x, mask()))
    for dtype in (torch.bfloat16, torch.float16):
        y = T.to(dtype)(x.to(dtype), mask())
        assert (y.dtype, y.isfinite().all()) == (dtype, True)
