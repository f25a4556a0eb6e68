"""Measures of over-smoothing, also of models that are no plain stack of layers."""

import json
import math

import pytest
import torch
from attention_core import (
    AGF,
    GFSA,
    EigenSpectrum,
    Plain,
    SelfAttention,
    Softmax,
    attach,
    diagnose,
    spectral,
)
from experiment_kit.diagnostics.coefficients import (
    collect_coefficients,
    measure_condition_numbers,
)
from experiment_kit.diagnostics.hooks import eval_mode, find_networks
from experiment_kit.diagnostics.smoothness import TOKEN_MEASURES, NetworkCall, measure_spectra
from timm.models import SwinTransformer, VisionTransformer
from torch import nn
from transformers import BertConfig, BertModel

B, N, DIM = 3, 7, 8


class Pair(nn.Sequential):
    """A layer's output, and something else beside it."""

    def forward(self, *args):
        return self[0](*args), "attention"


class Twice(nn.Module):
    """One layer used twice, as ALBERT's is; it puts out a tuple, as transformers' blocks do."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, DIM)
        self.attention = SelfAttention(DIM, 2, filter=lambda heads: GFSA(heads, wK=0.25))
        self.block = Pair(self.attention)

    def monitored_layers(self):
        return [self.embed, self.block, self.block]

    def token_mask(self, batch):
        return batch[1]

    def predict_step(self, batch, batch_idx):
        ids, mask, *_ = batch
        x = self.embed(ids)
        for _ in range(2):
            x, _ = self.block(x, mask)
        return x


class Decoding(Twice):
    """Behind the encoder a decoder that goes token by token: one query, all keys."""

    def __init__(self):
        super().__init__()
        self.decoder = nn.Module()
        self.decoder.filter = Plain()

    def predict_step(self, batch, batch_idx):
        x = super().predict_step(batch, batch_idx)
        heads = x.unflatten(-1, (2, -1)).transpose(1, 2)
        for step in range(1, 3):
            query, past = heads[:, :, step - 1 : step], heads[:, :, :step]
            self.decoder.filter(Softmax(query, past), past)
        return x


class Generating(Twice):
    """A decoder alone, whose watched layer sees the text and then one token at a time."""

    def __init__(self):
        super().__init__()
        self.block.filter = Plain()

    def predict_step(self, batch, batch_idx):
        x = super().predict_step(batch, batch_idx)
        heads = x.unflatten(-1, (2, -1)).transpose(1, 2)
        for _ in range(3):
            step, _ = self.block(x[:, -1:], None)
            self.block.filter(Softmax(heads[:, :, -1:], heads), heads)
        return step


def batch():
    ids, mask = torch.randint(11, (B, N)), torch.ones(B, N, dtype=torch.bool)
    mask[1, 4:] = False
    return [ids, mask]


def test_a_shared_layer_is_measured_at_each_use_by_the_first_of_its_outputs():
    model, (ids, mask) = Twice().eval(), batch()
    measures = measure_spectra(model, [ids, mask])
    once = model.attention(model.embed(ids), mask)
    twice = model.attention(once, mask)
    states = (model.embed(ids), once, twice)
    expected = [spectral.token_cosine(x, mask).mean().item() for x in states]
    assert [layer["token_cosine"] for layer in measures["depth"]] == pytest.approx(expected)
    assert [len(response) for response in measures["response"]] == [N // 2 + 1] * 2


def test_padding_changes_no_response():
    model, ids = Twice().double().eval(), torch.randint(11, (B, N))
    nn.init.normal_(model.embed.weight, std=10.0)  # maps that are far from uniform
    mask = torch.ones(B, N, dtype=torch.bool)
    padded = [nn.functional.pad(ids, (0, N)), nn.functional.pad(mask, (0, N))]
    short, long = measure_spectra(model, [ids, mask]), measure_spectra(model, padded)
    for alone, response in zip(short["response"], long["response"], strict=True):
        assert response[::2] == pytest.approx(alone, rel=1e-4)  # twice as many frequencies


def test_tokens_that_diverged_have_no_measure_and_stop_nothing():
    model = Twice().eval()
    nn.init.constant_(model.embed.weight, float("nan"))
    depth = measure_spectra(model, batch())["depth"]
    assert depth
    assert all(math.isnan(value) for layer in depth for value in layer.values())


@pytest.mark.parametrize("kind", [Decoding, Generating])
def test_steps_of_a_decoder_are_left_out(kind):
    torch.manual_seed(1)
    model, given = kind().eval(), batch()
    found = measure_spectra(model, given)
    torch.manual_seed(1)
    encoder = type("Encoder", (kind,), {"predict_step": Twice.predict_step})()
    expected = measure_spectra(encoder.eval(), given)
    assert (len(found["depth"]), len(found["response"])) == (3, 2)
    assert found["depth"] == expected["depth"]
    assert found["response"] == expected["response"]


class TwoLayers(Twice):
    """Two attention layers, one with a filter and one with a kernel."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.second = SelfAttention(DIM, 2, kernel=lambda dim, heads: AGF(dim, heads, **options))
        self.dropout = nn.Dropout(0.5)

    def monitored_layers(self):
        return [self.embed, self.attention, self.second]

    def predict_step(self, batch, batch_idx):
        ids, mask = batch
        return self.dropout(self.second(self.attention(self.embed(ids), mask), mask))


def test_measures_equal_their_definitions() -> None:
    model, (ids, mask) = TwoLayers(K=2).train(), batch()
    measures = measure_spectra(model, [ids, mask])
    assert model.training
    assert len(measures["depth"]) == 3
    expected = {k: f(model.embed(ids), mask).mean().item() for k, f in TOKEN_MEASURES.items()}
    assert measures["depth"][0] == pytest.approx(expected)
    assert [len(layer) for layer in measures["response"]] == [4, 4]
    assert measures["coefficients"]["attention.filter.wK"] == [0.25, 0.25]
    assert measures["coefficients"]["second.kernel.theta"] == [1.0, 0.0, 0.0]
    json.dumps(measures)
    assert not any(m._forward_hooks for m in model.modules())


def test_eval_mode_restores_the_mode_of_each_module() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Dropout(), nn.Dropout()))
    model[1][0].eval()
    before = [module.training for module in model.modules()]
    with eval_mode(model):
        assert not any(module.training for module in model.modules())
    after = [module.training for module in model.modules()]
    assert after == before == [True, True, True, False, True]


def build_bert(**options) -> BertModel:
    size = {"hidden_size": DIM, "num_attention_heads": 2, "intermediate_size": 12}
    return BertModel(BertConfig(vocab_size=11, num_hidden_layers=3, **size, **options)).double()


def test_blocks_of_a_host_are_found_by_hooks_and_the_host_stays_as_it_was() -> None:
    model, (ids, mask) = nn.ModuleDict({"net": build_bert()}), batch()
    before = [type(m) for m in model.modules()]
    call = NetworkCall(model["net"], (ids,), {"attention_mask": mask.long()})
    measures = measure_spectra(model, call)
    with torch.no_grad():
        states = model["net"].eval()(ids, mask.long(), output_hidden_states=True).hidden_states
    expected = [spectral.token_cosine(x, mask).mean().item() for x in states]
    found = [layer["token_cosine"] for layer in measures["depth"]]
    assert found == pytest.approx(expected, rel=1e-5)
    assert [len(gains) for gains in measures["response"]] == [N // 2 + 1] * 3
    assert [type(m) for m in model.modules()] == before
    assert measures["attention"][2] == "net.encoder.layer.2.attention.self"
    assert find_networks(model)[:2] == [model["net"], model["net"].encoder]


def test_windows_and_a_single_block_have_tokens() -> None:
    images = torch.randn(2, 3, 32, 32)
    tiny = {"img_size": 32, "patch_size": 4, "embed_dim": 8, "num_classes": 3}
    swin = SwinTransformer(depths=(1, 2), num_heads=(2, 2), window_size=4, **tiny)
    assert len(measure_spectra(nn.Sequential(swin), NetworkCall(swin, (images,), {}))["depth"]) == 4
    single = VisionTransformer(depth=1, num_heads=2, **tiny)
    assert (
        len(measure_spectra(nn.Sequential(single), NetworkCall(single, (images,), {}))["depth"])
        == 2
    )


def test_attention_with_and_without_a_filter_is_measured() -> None:
    net = attach(VisionTransformer(32, 8, embed_dim=DIM, depth=3, num_heads=2), GFSA, [1])
    measures = measure_spectra(
        nn.Sequential(net), NetworkCall(net, (torch.randn(2, 3, 32, 32),), {})
    )
    assert len(measures["response"]) == len(measures["condition_number"]) == 3
    assert {name.rpartition(".")[0] for name in measures["coefficients"]} == {
        "0.blocks.1.attn.filter"
    }
    assert [type(block.attn).__name__ for block in net.blocks] == [
        "Attention",
        "FilteredAttention",
        "Attention",
    ]


def test_a_module_without_attention_says_what_it_has() -> None:
    with pytest.raises(ValueError, match="has no attention that attach knows"):
        measure_spectra(net := nn.Linear(2, 2), NetworkCall(net, (torch.ones(2, 2),), {}))


def test_condition_numbers_are_those_of_the_whole_product() -> None:
    layer = SelfAttention(DIM, 2)
    nn.init.normal_(layer.proj.weight[0], std=1e-8)  # in float32 the product would be singular
    value, output = layer.qkv.weight[2 * DIM :].double(), layer.proj.weight.double()
    (found,) = measure_condition_numbers(layer)
    assert found == pytest.approx(torch.linalg.cond(output @ value).item())
    assert 1e7 < found < math.inf
    report = diagnose(layer, torch.randn(B, N, DIM), mechanisms=[])
    assert report.layers[0].condition_number == found


def test_a_singular_product_has_an_infinite_condition_number() -> None:
    layer = SelfAttention(DIM, 2)
    nn.init.zeros_(layer.proj.weight[0])
    assert measure_condition_numbers(layer) == [math.inf]


def test_the_eigenvalues_of_a_spectrum_are_coefficients() -> None:
    model = nn.Sequential(SelfAttention(DIM, 2, reparam=EigenSpectrum))
    psi = collect_coefficients(model)["0.spectrum.psi"]
    assert len(psi) == DIM
    assert all(-1 <= value <= 0 for value in psi)
