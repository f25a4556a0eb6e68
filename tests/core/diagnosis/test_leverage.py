"""Leverage is the derivative that finite differences give, at the identity of each mechanism."""

from dataclasses import astuple
from functools import partial

import pytest
import torch
from attention_core import GFSA, AttnScale, CenteredAttention, FeatScale, attach, diagnose, spectral
from attention_core.diagnosis.leverage import DEFAULT_MECHANISMS, make_contranorm
from attention_core.hosts.attach import detach
from attention_core.operators import average
from torch import Tensor, nn

from tests.core.diagnosis.test_diagnose import DIM, HEADS, B, N, Stack

STEP = 1e-4


class Centering(nn.Module):
    """Plain attention at c = 0, and centered attention at c = 1."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.c = nn.Parameter(torch.zeros(()))

    def forward(self, A, v: Tensor) -> Tensor:
        return A @ v - self.c * average(A, v)


def make_encoder() -> nn.Module:
    """Make layers of torch, which attach and its positions know."""
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 20, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def build(make=make_encoder) -> nn.Module:
    torch.manual_seed(0)
    model = make().double().eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=0.4)
    return model


def measure(model: nn.Module, batch: tuple[Tensor, ...], valid: Tensor | None) -> Tensor:
    with torch.no_grad():
        y = model(*batch)
    ratio = spectral.hfc_lfc(y, valid).log().mean()
    return torch.stack([spectral.token_cosine(y, valid).mean(), ratio])


def differentiate(model, part: nn.Module, name: str, batch, valid) -> list[float]:
    weight = part.get_parameter(name)
    found = []
    for sign in (1, -1):
        with torch.no_grad():
            weight.add_(sign * STEP)
            found.append(measure(model, batch, valid))
            weight.sub_(sign * STEP)
    return ((found[0] - found[1]) / (2 * STEP)).tolist()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("make", "filter"), [
    (GFSA, partial(GFSA, learn=("w0", "w1", "wK"))), (AttnScale, AttnScale),
    (CenteredAttention, Centering), (FeatScale, None),
])  # fmt: skip
def test_leverage_equals_finite_differences(make, filter, padded):
    model, x, padding = build(), torch.randn(B, N, DIM).double(), None
    valid = torch.ones(B, N, dtype=torch.bool)
    if padded:
        valid[1, 4:] = False
        padding = ~valid
    report = diagnose(model, (x, None, padding), mask=valid, mechanisms=[make])
    assert not report.notes
    for entry in report.leverage:
        assert entry.mechanism == make.__name__
        changed = model if filter is None else attach(model, filter)
        if filter is None:
            attach(model, tokens=FeatScale)
        attention = changed.layers[entry.layer].self_attn.double()
        part = attention.filter if filter else attention.out_proj.tokens
        expected = differentiate(changed, part, entry.coefficient, (x, None, padding), valid)
        found = [entry.token_cosine, entry.log_hfc_lfc]
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-6)
        detach(model)
    moves = [abs(entry.log_hfc_lfc) for entry in report.leverage]
    assert moves == sorted(moves, reverse=True)
    assert len(moves) == 2 * {GFSA: 3, FeatScale: 2}.get(make, 1)


def test_mechanisms_that_share_a_backward_pass_are_measured_as_each_alone():
    model, x = build(), torch.randn(B, N, DIM).double()
    together = diagnose(model, x)
    alone = [diagnose(model, x, mechanisms=[make]) for make in DEFAULT_MECHANISMS]

    def collect(reports):
        return {x[:3]: x[3:5] for report in reports for x in map(astuple, report.leverage)}

    expected = collect(alone)
    names = {"GFSA", "AttnScale", "CenteredAttention", "FeatScale", "ContraNorm"}
    assert {key[0] for key in expected} == names
    assert collect([together]).keys() == expected.keys()
    for key, values in collect([together]).items():
        assert values == pytest.approx(expected[key], rel=1e-9, abs=1e-12)
    assert together.notes == [note for report in alone for note in report.notes]


def test_a_mechanism_that_a_forward_pass_refuses_leaves_the_others(monkeypatch):
    def refuse(*_):
        raise ValueError("it refuses")

    monkeypatch.setattr(AttnScale, "forward", lambda self, A, v: refuse())
    report = diagnose(build(), torch.randn(B, N, DIM).double(), mechanisms=[GFSA, AttnScale])
    assert report.notes == ["no leverage of AttnScale: it refuses"]
    assert {entry.mechanism for entry in report.leverage} == {"GFSA"}


def test_contranorm_acts_on_the_sums_of_a_layer():
    assert torch.equal(make_contranorm(3)(torch.ones(1, 2, 3)), torch.ones(1, 2, 3))
    model, x = build(lambda: Stack(depth=2)), torch.randn(B, N, DIM).double()
    found = diagnose(model, x, mechanisms=[make_contranorm]).leverage
    (entry,) = (entry for entry in found if entry.layer == 0)
    made = model.blocks[0].made = make_contranorm(DIM).double()
    model.blocks[0].register_forward_hook(lambda block, args, y: made(y))
    expected = differentiate(model, made, "scale_param", (x,), None)
    assert [entry.token_cosine, entry.log_hfc_lfc] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.double, torch.bfloat16])
def test_own_attention_takes_filters_and_tokens(dtype):
    model, x = build(lambda: Stack(depth=2)).to(dtype), torch.randn(B, N, DIM).to(dtype)
    report = diagnose(model, x, layers=[1], mechanisms=[GFSA, FeatScale])
    found = {(entry.mechanism, entry.layer, entry.coefficient) for entry in report.leverage}
    names = [("GFSA", "w0"), ("GFSA", "w1"), ("GFSA", "wK"), ("FeatScale", "s"), ("FeatScale", "t")]
    assert found == {(mechanism, 1, name) for mechanism, name in names}
    assert model.blocks[1].attn.tokens is None
