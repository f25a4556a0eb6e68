"""Attention of transformers: the same model with Plain, the reference H with a filter."""

import copy
import pickle
from functools import partial

import pytest
import torch
import transformers as hf
from attention_core import AGF, GFSA, EigenSpectrum, Plain, attach, detach
from torch.testing import assert_close

from tests.hosts.helpers import filters, randomize, replace_maps, share_weights
from tests.hosts.transformers.models import (
    BERT,
    EAGER,
    FAMILIES,
    SLIDES,
    TEXT,
    build,
    compute_checkpointed_gradients,
    make_inputs,
)

all_families = pytest.mark.parametrize("family", FAMILIES)


@all_families
def test_a_filter_is_the_dense_one_forward_and_backward(family):
    stock = build(family)
    ours = randomize(attach(copy.deepcopy(stock), partial(GFSA, learn=("w0", "w1", "wK"))))
    leaves = share_weights(ours)
    # stock models that run eagerly in float64 are nan where a window holds padding alone
    for padded in (False, family not in EAGER):
        given = make_inputs(family, padded=padded)
        y = ours(**given)[0]
        with replace_maps(leaves):
            expected = stock(**given)[0]
        if padded and family in SLIDES:  # padding sees nothing in its window: zero, not uniform
            y, expected = (x[given["attention_mask"].bool()] for x in (y, expected))
        tolerance = 1e-5 if family == "gemma2" else 1e-8  # it forms its maps in float32
        assert_close(y, expected, rtol=tolerance, atol=tolerance)
        for out in (y, expected):
            out.square().mean().backward()
    for name, leaf in zip(("w0", "w1", "wK"), leaves, strict=True):
        grad = sum(getattr(filter, name).grad.double() for filter in filters(ours))
        assert leaf.grad.abs().min() > 0
        assert_close(grad, leaf.grad, rtol=1e-4, atol=1e-5)


@all_families
def test_the_filters_map_is_returned_where_attentions_are_asked_for(family):
    model, given = randomize(attach(build(family), partial(GFSA, w0=0.2))), make_inputs(family)
    out = model(**given, output_attentions=True)
    assert torch.equal(out[0], model(**given)[0])
    maps = [*(out.get("encoder_attentions") or ()), *(out.get("decoder_attentions") or ())]
    maps = maps or list(out.attentions)
    sums = [sum(w for w in f.parameters()) for f in filters(model)]
    sums *= len(maps) // len(sums)  # ALBERT's layers share one
    for H, total in zip(maps, sums, strict=True):
        if family == "gpt_oss":  # the sinks take a part of each row
            assert H.shape[-2:] == (9, 9)
            continue
        assert_close(H.sum(-1), total.double().view(1, -1, 1).expand(H.shape[:3]))


def test_maps_of_layers_without_a_filter_are_their_attention():
    stock, given = build("bert"), make_inputs("bert", padded=True)
    ours = attach(copy.deepcopy(stock), GFSA, "1:")
    stock.set_attn_implementation("eager")
    expected = stock(**given, output_attentions=True).attentions
    assert_close(ours(**given, output_attentions=True).attentions, expected)


@all_families
def test_detach_restores_the_configs(family):
    model = detach(attach(attach(build(family), Plain, ":1"), GFSA))
    configs = [module.config for module in model.modules() if hasattr(module, "config")]
    expected = "eager" if family in EAGER else "sdpa"
    assert {config._attn_implementation for config in configs} == {expected}
    assert not hasattr(model.config, "attention_core")


def test_a_pickle_is_filtered():
    model, given = randomize(attach(build("bert"), GFSA)), make_inputs("bert")
    assert torch.equal(pickle.loads(pickle.dumps(model))(**given)[0], model(**given)[0])


def test_dropout_of_maps_acts_in_training_alone():
    options = {"attention_probs_dropout_prob": 0.4, "hidden_dropout_prob": 0.0}
    model, given = attach(build("bert", **options), GFSA), make_inputs("bert")
    assert torch.equal(model(**given)[0], model(**given)[0])
    model.train()
    assert not torch.equal(model(**given)[0], model(**given)[0])


def test_gradient_checkpointing_changes_nothing():
    model = attach(build("bert"), partial(GFSA, wK=0.3)).train()
    given = make_inputs("bert", padded=True)
    assert_close(*compute_checkpointed_gradients(model, lambda: model(**given)[0]))


@pytest.mark.parametrize("family", TEXT)
def test_a_kernel_and_a_spectrum_have_no_place(family):
    model = build(family)
    with pytest.raises(ValueError, match="has no place for a kernel"):
        attach(model, kernel=AGF)
    with pytest.raises(ValueError, match="has no place for a reparameterisation"):
        attach(model, reparam=EigenSpectrum)
    assert not filters(model)


def test_a_model_compiles_in_one_graph():
    model = hf.BertModel(hf.BertConfig(**BERT)).eval()
    model, given = randomize(attach(model, GFSA)), make_inputs("bert", padded=True)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_close(compiled(**given)[0], model(**given)[0])
