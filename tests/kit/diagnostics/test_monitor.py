"""The spectral monitor: its measures, and models that are no plain stack of layers."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from attention_core import AGF, GFSA, Plain, SelfAttention, Softmax, spectral
from experiment_kit.diagnostics import monitor
from experiment_kit.diagnostics.monitor import measure_spectra
from experiment_kit.diagnostics.plots import MEASURES
from torch import nn
from torch.utils.tensorboard import SummaryWriter

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


def load_batch(whole, samples):
    data = SimpleNamespace(val_dataloader=lambda: [whole])
    plugin = SimpleNamespace(convert_input=lambda given: given)
    trainer = SimpleNamespace(datamodule=data, precision_plugin=plugin)
    module = SimpleNamespace(transfer_batch_to_device=lambda given, *_: given, device="cpu")
    return monitor.SpectralMonitor(samples=samples)._load_batch(trainer, module)


def test_a_batch_is_cut_to_few_samples_whatever_its_parts_are():
    whole = [*batch(), [torch.arange(n) for n in (2, 5, 1)]]
    ids, mask, lists = load_batch(whole, samples=2)
    assert (ids.shape, mask.shape, mask.dtype) == ((2, N), (2, N), torch.bool)
    assert [len(part) for part in lists] == [2, 5]
    assert ids.data_ptr() != whole[0].data_ptr()  # the loader's memory may be used again


def test_a_long_text_is_measured_on_fewer_samples():
    assert len(load_batch([torch.zeros(8, 1024)], samples=8)[0]) == 2


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
    expected = {k: getattr(spectral, k)(model.embed(ids), mask).mean().item() for k in MEASURES}
    assert measures["depth"][0] == pytest.approx(expected)
    assert [len(layer) for layer in measures["response"]] == [4, 4]
    assert measures["coefficients"]["attention.filter.wK"] == [0.25, 0.25]
    assert measures["coefficients"]["second.kernel.theta"] == [1.0, 0.0, 0.0]
    json.dumps(measures)
    assert not any(m._forward_hooks for m in model.modules())


@pytest.mark.parametrize("singular_values", ["filtered", "generated", "learned", "ones"])
def test_every_ablation_of_agf_is_logged(singular_values: str, tmp_path) -> None:
    measures = measure_spectra(TwoLayers(singular_values=singular_values), batch())
    with SummaryWriter(tmp_path) as board:
        monitor._log_measures(board, 1, measures, figures=True)
    has_coefficients = singular_values in ("filtered", "learned")
    assert ("second.kernel.theta" in measures["coefficients"]) == has_coefficients


def test_eval_mode_restores_the_mode_of_each_module() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Dropout(), nn.Dropout()))
    model[1][0].eval()
    before = [module.training for module in model.modules()]
    with monitor.eval_mode(model):
        assert not any(module.training for module in model.modules())
    after = [module.training for module in model.modules()]
    assert after == before == [True, True, True, False, True]
