"""The hosts of any supported version: `make test-oldest test-newest` run this file at both ends."""

import copy
from functools import partial

import pytest
import torch
import transformers as hf
from attention_core import GFSA, attach, detach, trainable_parameters
from attention_core.hosts.transformers import load
from timm.models.beit import Attention
from torch import Tensor, nn
from torch.testing import assert_close

from tests.hosts import timm_models, torch_models
from tests.hosts.helpers import run
from tests.hosts.transformers import models

CAUSAL = ("gpt2", "llama", "mistral")
TEXTS = ("bert", "roberta", "albert", "distilbert", "bart")
MODELS = {
    **{name: (partial(models.build, name), partial(models.make_inputs, name))
       for name in CAUSAL + TEXTS},
    **{name: (partial(timm_models.build, name), timm_models.make_inputs)
       for name in ("vit", "cait", "swin")},
    "beit": (partial(Attention, 12, 3, window_size=(3, 3)), lambda: {"x": torch.randn(2, 10, 12)}),
    "torch": (torch_models.BUILDS["encoder"], partial(torch_models.make_inputs, "encoder")),
}  # fmt: skip


def build(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    model, inputs = (make() for make in MODELS[name])
    inputs = {key: x.double() if x.is_floating_point() else x for key, x in inputs.items()}
    return model.double(), inputs


def act(model: nn.Module) -> nn.Module:
    for weight in trainable_parameters(model).values():
        nn.init.constant_(weight, 0.6)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_a_model_starts_as_itself_acts_and_is_restored(name):
    stock, inputs = build(name)
    before, model = run(stock, inputs), attach(copy.deepcopy(stock), GFSA)
    assert_close(run(model, inputs), before)
    after = run(act(model), inputs)
    assert (after - before).abs().max() > 1e-4
    after.square().mean().backward()
    assert all(w.grad is not None for w in trainable_parameters(model).values())
    assert_close(run(detach(model), inputs), before)


@pytest.mark.parametrize("name", TEXTS)
def test_padding_is_truncation(name):
    model, given = act(attach(models.build(name), GFSA)), models.make_inputs(name, padded=True)
    model = model.get_encoder() if name == "bart" else model
    given = {name: given[name] for name in ("input_ids", "attention_mask")}
    assert_close(run(model, given)[1:, :5], run(model, {"input_ids": given["input_ids"][1:, :5]}))


@pytest.mark.parametrize("name", CAUSAL)
def test_generation_with_a_cache_is_that_without(name):
    model, given = act(attach(models.build(name), GFSA)), models.make_inputs(name)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 1}
    cached = model.generate(**given, **options)
    assert torch.equal(cached, model.generate(**given, **options, use_cache=False))


def test_a_checkpoint_of_transformers_comes_back(tmp_path):
    model, inputs = build("bert")
    act(attach(model, GFSA)).save_pretrained(tmp_path)
    again = copy.deepcopy(load(hf.AutoModel, tmp_path)).double()
    assert_close(run(again, inputs), run(model, inputs), atol=1e-6, rtol=1e-6)


def test_maps_are_returned_where_attentions_are_asked_for():
    model, inputs = build("llama")
    assert attach(model, GFSA)(**inputs, output_attentions=True).attentions[0].shape == (2, 6, 9, 9)


def test_a_model_of_several_libraries_is_filtered_in_each():
    model = nn.ModuleDict({name: build(name)[0] for name in ("bert", "vit", "torch", "beit")})
    attach(model, GFSA)
    filtered = {name for name, module in model.named_modules() if hasattr(module, "filter")}
    counts = {part: sum(name.startswith(part) for name in filtered) for part in model}
    assert counts == {"bert": 2, "vit": 3, "torch": 2, "beit": 1}
