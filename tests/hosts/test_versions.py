"""The hosts of any supported version: `make test-oldest test-newest` run this file at both ends."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm
import torch
import transformers as hf
from attention_core import (
    AGF,
    GFSA,
    EigenSpectrum,
    FeatScale,
    attach,
    detach,
    load_mechanism,
    save_mechanism,
    trainable_parameters,
)
from attention_core.hosts.transformers import load
from torch import Tensor, nn
from torch.testing import assert_close

hf.logging.set_verbosity_error()
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
SIZES |= {"intermediate_size": 20, "vocab_size": 31, "pad_token_id": 1}
GPT2 = {"n_embd": 24, "n_layer": 2, "n_head": 3, "vocab_size": 31, "eos_token_id": 2}
BART = {"d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 31}
BART |= {"encoder_attention_heads": 3, "decoder_attention_heads": 3, "pad_token_id": 1}
DISTILBERT = {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 20, "vocab_size": 31}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: hf.BertModel(hf.BertConfig(**SIZES)),
    "roberta": lambda: hf.RobertaModel(hf.RobertaConfig(**SIZES)),
    "albert": lambda: hf.AlbertModel(hf.AlbertConfig(**SIZES, embedding_size=10)),
    "distilbert": lambda: hf.DistilBertModel(hf.DistilBertConfig(**DISTILBERT)),
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2)),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**SIZES, num_key_value_heads=3,
                                                             sliding_window=4)),
    "bart": lambda: hf.BartModel(hf.BartConfig(**BART)),
    "vit": lambda: timm.create_model("vit_tiny_patch16_224", img_size=48, depth=2),
    "cait": lambda: timm.create_model(
        "cait_xxs24_224", img_size=48, depth=2, init_values=0.5
    ),
    "swin": lambda: timm.create_model("swin_tiny_patch4_window7_224", img_size=56, depths=(2, 2)),
    "beit": lambda: timm.create_model("beit_base_patch16_224", img_size=48, depth=1),
    "torch": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 3, 20), 2),
}  # fmt: skip
CAUSAL = ("gpt2", "llama", "mistral")
TEXTS = ("bert", "roberta", "albert", "distilbert", "bart")


def build(name: str) -> nn.Module:
    model = MODELS[name]().double().eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=0.2)
    return model


def make_inputs(model: nn.Module) -> dict[str, Tensor]:
    if isinstance(model, hf.PreTrainedModel):
        return {"input_ids": torch.randint(3, 31, (2, 9))}
    if isinstance(model, nn.TransformerEncoder):
        return {"src": torch.randn(9, 2, 24).double()}
    size = 56 if "swin" in type(model).__name__.lower() else 48
    return {"x": torch.randn(2, 3, size, size).double()}


def run(model: nn.Module, **inputs: Any) -> Tensor:
    y = model(**inputs)
    return y if isinstance(y, Tensor) else y[0]


def act(model: nn.Module) -> nn.Module:
    for weight in trainable_parameters(model).values():
        nn.init.constant_(weight, 0.6)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_a_model_starts_as_itself_acts_and_is_restored(name):
    stock = build(name)
    inputs = make_inputs(stock)
    before, model = run(stock, **inputs), attach(copy.deepcopy(stock), GFSA)
    assert_close(run(model, **inputs), before)
    after = run(act(model), **inputs)
    assert (after - before).abs().max() > 1e-4
    after.square().mean().backward()
    assert all(w.grad is not None for w in trainable_parameters(model).values())
    assert_close(run(detach(model), **inputs), before)


@pytest.mark.parametrize("name", TEXTS)
def test_padding_is_truncation(name):
    model = act(attach(build(name), GFSA))
    ids, mask = torch.randint(3, 31, (2, 9)), torch.ones(2, 9).long()
    mask[1, 6:] = 0
    ids[1, 6:] = 1
    y = run(model, input_ids=ids, attention_mask=mask)
    if name != "bart":
        assert_close(y[1:, :6], run(model, input_ids=ids[1:, :6]))
    other = ids.clone()
    other[1, 6:] = 7
    encoder = model.encoder if name == "bart" else model
    pair = [run(encoder, input_ids=given, attention_mask=mask)[1, :6] for given in (ids, other)]
    assert_close(*pair)


@pytest.mark.parametrize("name", CAUSAL)
def test_generation_with_a_cache_is_that_without(name):
    model = act(attach(build(name), GFSA))
    ids = torch.randint(3, 31, (2, 6))
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 1}
    cached = model.generate(input_ids=ids, **options)
    assert torch.equal(cached, model.generate(input_ids=ids, **options, use_cache=False))


@pytest.mark.parametrize(
    "slots",
    [
        {"kernel": AGF},
        {"tokens": FeatScale},
        {"tokens": FeatScale, "position": "branches"},
        {"reparam": partial(EigenSpectrum, init="orthogonal")},
    ],
)
def test_other_mechanisms_of_a_vision_transformer(slots, tmp_path):
    stock = build("vit")
    inputs = make_inputs(stock)
    model = act(attach(copy.deepcopy(stock), **slots))
    assert (run(model, **inputs) - run(stock, **inputs)).abs().max() > 1e-4
    save_mechanism(model, tmp_path)
    assert_close(run(load_mechanism(stock, tmp_path), **inputs), run(model, **inputs))


def test_a_checkpoint_of_transformers_comes_back(tmp_path):
    model = act(attach(build("bert"), GFSA))
    model.save_pretrained(tmp_path)
    ids = torch.randint(3, 31, (2, 9))
    again = copy.deepcopy(load(hf.AutoModel, tmp_path)).double()
    assert_close(run(again, input_ids=ids), run(model, input_ids=ids), atol=1e-6, rtol=1e-6)


def test_maps_are_returned_where_attentions_are_asked_for():
    model = act(attach(build("llama"), GFSA))
    out = model(torch.randint(3, 31, (2, 9)), output_attentions=True)
    assert out.attentions[0].shape == (2, 3, 9, 9)


def test_a_model_of_several_libraries_is_filtered_in_each():
    model = nn.ModuleDict({name: build(name) for name in ("bert", "vit", "torch", "beit")})
    attach(model, GFSA)
    filtered = {name for name, module in model.named_modules() if hasattr(module, "filter")}
    counts = {part: sum(name.startswith(part) for name in filtered) for part in model}
    assert counts == {"bert": 2, "vit": 2, "torch": 2, "beit": 1}
