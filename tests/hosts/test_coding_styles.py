"""The diagnosis of a model in any style of code equals numpy on the tensors of its stream."""

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from attention_core import AttnScale, diagnose
from attention_core.diagnosis.report import number_layers
from torch import nn

from tests.hosts.coding_styles import DEPTH, DIM, HEADS, STYLES, B, Base, Cross, N, Orders, Torch


def make_tokens() -> torch.Tensor:
    torch.manual_seed(3)
    return torch.randn(B, N, DIM) + 0.5


def measure_by_numpy(x: torch.Tensor) -> tuple[float, float]:
    """Return the token cosine and HFC/LFC of tokens, as means over samples."""
    cosines, ratios = [], []
    for sample in x.flatten(1, -2).double().numpy():
        unit = sample / np.linalg.norm(sample, axis=-1, keepdims=True)
        cosines.append(np.abs(unit @ unit.T)[np.triu_indices(len(unit), 1)].mean())
        mean = sample.mean(0)
        ratios.append(np.linalg.norm(sample - mean) / (len(sample) ** 0.5 * np.linalg.norm(mean)))
    return float(np.mean(cosines)), float(np.mean(ratios))


@pytest.mark.parametrize("style", STYLES)
def test_tokens_of_every_style_are_those_of_the_stream(style):
    model = STYLES[style]().eval()
    report = diagnose(model, make_tokens(), mechanisms=[AttnScale])
    assert [layer.index for layer in report.layers] == list(range(DEPTH))
    assert {x.num_heads for x in report.layers} == {1 if style == "loop over heads" else HEADS}
    assert any("no leverage" in note for note in report.notes) == (style == "in place")
    with torch.no_grad():
        model(make_tokens())
    curves = zip(report.curve("token_cosine"), report.curve("hfc_lfc"), strict=True)
    for found, x in zip(curves, model.seen, strict=True):
        assert found == pytest.approx(measure_by_numpy(x), rel=1e-4)
    total = sum(sum(layer.changes.values()) for layer in report.layers)
    ends = (report.layers[0].steps["input"], report.layers[-1].output)
    first, last = (np.log(x.samples["hfc_lfc"]) for x in ends)
    assert total == pytest.approx((last - first).mean(), rel=1e-3, abs=1e-4)
    assert "no verdict" not in report.verdict


def test_cross_attention_is_blamed_by_its_name():
    report = diagnose(Cross(), make_tokens(), mechanisms=[])
    assert "What smooths most is cross-attention" in report.verdict
    assert all(abs(layer.changes["MLP"]) < 1e-5 for layer in report.layers)


def test_a_sum_that_is_written_into_most_tokens_is_of_the_stream():
    class Written(Base):
        def layer(self, i, x):
            x = x + self.attn[i](self.n1[i](x))
            x[:, 1:] = x[:, 1:] + 3 * self.mlp[i](self.n2[i](x[:, 1:]))
            return x

    for layer in diagnose(Written(), make_tokens(), mechanisms=[]).layers:
        assert layer.changes["MLP"] != pytest.approx(0, abs=1e-3)


def test_the_blame_of_a_parallel_sum_is_shared_out():
    model = Orders("parallel")
    for mlp in model.mlp:
        nn.init.zeros_(mlp[-1].weight)
        nn.init.zeros_(mlp[-1].bias)
    for layer in diagnose(model, make_tokens(), mechanisms=[]).layers:
        assert layer.changes["MLP"] == pytest.approx(0, abs=1e-5)
        assert layer.changes["attention"] != pytest.approx(0, abs=1e-3)


def test_one_large_channel_does_not_make_a_model_over_smooth():
    model = Base()
    with torch.no_grad():
        model.mlp[0][-1].bias[5] = 200.0
    report = diagnose(model, make_tokens(), mechanisms=[])
    last = report.layers[-1].output
    assert last.token_cosine > 0.9
    assert last.outlier_channels == [5]
    assert last.trimmed_token_cosine < 0.5
    assert "The model over-smooths" not in report.verdict
    assert any("outlier channels (5;" in text for text in report.findings)


def test_one_large_token_is_named_and_left_out():
    x = make_tokens()
    x[:, 0] *= 100
    report = diagnose(Base(Torch), x, mechanisms=[])
    first = report.layers[0].steps["input"]
    assert first.outlier_tokens == 1
    trimmed = measure_by_numpy(x[:, 1:])
    assert (first.trimmed_token_cosine, first.trimmed_hfc_lfc) == pytest.approx(trimmed, rel=1e-5)
    assert any("outlier tokens (1.0 a sample" in text for text in report.findings)


def test_an_interval_that_holds_a_limit_is_borderline():
    class Mixed(Base):
        """Half of the samples become alike, the others do not."""

        def layer(self, i, x):
            mean = self.attn[i](self.n1[i](x)).mean(1, keepdim=True)
            strength = torch.tensor([30.0, 30.0, 0.0, 0.0])[:, None, None]
            return x + strength * (mean + self.attn[i](self.n1[i](x)) * 0)

    for shift, limit in ((0, "0.9:"), (4, r"0.96\d*:")):  # over-smoothed, or as the input is
        verdict = diagnose(Mixed(), make_tokens() + shift, mechanisms=[]).verdict
        assert "is borderline" in verdict
        assert re.search(f"holds the limit, {limit} more samples may decide", verdict)


class Gated(Base):
    def layer(self, i, x):
        gate = self.n2[i](x).sigmoid()
        return gate * x + (1 - gate) * self.attn[i](self.n1[i](x))


class Stacked(Base):
    """Sums over an axis of their own."""

    def layer(self, i, x):
        return torch.stack([x, self.attn[i](self.n1[i](x))]).sum(0)


@pytest.mark.parametrize(("model", "depth"), [
    (type("One", (Gated,), {"forward": lambda self, x: self.layer(0, x)}), 1),
    (Gated, DEPTH), (Stacked, DEPTH),
])  # fmt: skip
def test_tokens_without_a_stream_have_no_verdict_and_a_reason(model, depth):
    report = diagnose(model(), make_tokens(), mechanisms=[])
    assert report.verdict.startswith("There is no verdict: no residual stream was found")
    assert len(report.layers) == depth


@pytest.mark.parametrize(("name", "size", "options"), [
    ("efficientformer_l1", 224, {}),  # convolutions, then tokens
    ("samvit_base_patch16", 64, {"img_size": 64, "depth": 3}),  # a bias of (B H, N, N)
])  # fmt: skip
def test_models_of_timm_have_a_verdict(name, size, options):
    model = pytest.importorskip("timm").create_model(name, **options)
    report = diagnose(model, torch.randn(2, 3, size, size), mechanisms=[], measures="light")
    assert report.verdict.startswith("The model")


def test_maps_that_are_mixed_over_heads_are_normalized_and_those_of_channels_refused():
    timm = pytest.importorskip("timm")
    model = timm.create_model("cait_xxs24_224", img_size=64, depth=2)
    report = diagnose(model, torch.randn(2, 3, 64, 64), mechanisms=[])
    assert len(report.layers) == 2
    for layer in report.layers:
        assert layer.relative_entropy == pytest.approx([1.0] * 4, abs=0.02)
    assert any("blocks_token_only.1.attn are left out: they" in x for x in report.notes)
    with pytest.raises(ValueError, match="maps of Xcit are of channels"):
        diagnose(timm.create_model("xcit_nano_12_p16_224"), torch.randn(1, 3, 224, 224))


def test_the_figure_and_the_table_show_the_numbers_of_the_verdict():
    report = diagnose(Base(), make_tokens(), mechanisms=[])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as matplotlib's
        ratios, cosines, *_ = report.plot().axes
    first, last = cosines.lines[0].get_ydata()[[0, -1]]
    assert f"token cosine {first:.2f} to {last:.2f} [" in report.verdict
    (row,) = [line for line in str(report).splitlines() if f"attn.{DEPTH - 1}" in line]
    assert f"{last:.3f}" in row.split()
    limits = [line.get_ydata()[0] for axis in (cosines, ratios) for line in axis.lines[1:]]
    assert limits == pytest.approx([0.9, 0.5 * ratios.lines[0].get_ydata()[0]])


def test_windows_in_a_masked_map_are_tied():
    layer = nn.TransformerEncoderLayer(DIM, 2, 2 * DIM, batch_first=True).eval()
    windows = torch.block_diag(torch.ones(N // 2, N // 2), torch.ones(N - N // 2, N - N // 2))
    for mask, tied in ((None, 0.0), (windows == 0, 1.0)):
        (found,) = diagnose(layer, (make_tokens(), mask), mechanisms=[]).layers
        assert found.eigenvalue_shares["tied"] == tied  # an eigenvalue 1 of each window


def test_the_layers_of_a_decoder_are_numbered_apart():
    model = nn.Transformer(DIM, 2, 2, 2, 2 * DIM, batch_first=True).eval()
    report = diagnose(model, (make_tokens(), make_tokens()), mechanisms=[])
    assert [x.map_similarity is None for x in report.layers] == [True, False] * 2
    assert re.search(r"of uniform attention, in layer (enc|dec) \d", str(report))
    assert "The encoder" in report.verdict
    assert "The decoder" in report.verdict
    assert "dec 0" in str(report)
    streams = [replace(report.layers[0], stack=f"stream {i}") for i in (0, 1)]
    assert [*number_layers(streams).values()] == ["s0 0", "s1 0"]
