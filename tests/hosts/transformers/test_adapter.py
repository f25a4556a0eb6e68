"""Attention of transformers: the same model with Plain, the reference H with a filter."""

import copy
import pickle
from functools import partial

import pytest
import torch
import transformers as hf
from attention_core import AGF, GFSA, EigenSpectrum, Plain, attach, detach
from torch.testing import assert_close

from tests.core import reference
from tests.core.cases import draw_kept
from tests.hosts.helpers import filtered_modules, filters, randomize
from tests.hosts.transformers.models import (
    BERT,
    EAGER,
    FAMILIES,
    SLIDES,
    TEXT,
    build,
    compute_checkpointed_gradients,
    make_inputs,
    use_reference_maps,
)

all_families = pytest.mark.parametrize("family", FAMILIES)


@all_families
def test_a_filter_is_the_reference_forward_and_backward(family):
    stock = build(family)
    ours = randomize(attach(copy.deepcopy(stock), partial(GFSA, K=4, learn=("w0", "w1", "wK"))))
    leaves = [[w.detach().double().requires_grad_() for w in f.parameters()] for f in filters(ours)]

    def H(A, i):
        return reference.gfsa(A, None, [w.view(-1, 1, 1) for w in leaves[i]], 4)

    expected_model = use_reference_maps(stock, family, H)
    for padded in (False, True):
        given = make_inputs(family, padded=padded)
        y, expected = ours(**given)[0], expected_model(**given)[0]
        if padded and family in SLIDES:  # padding sees nothing in its window: zero, not uniform
            valid = given["attention_mask"].bool()
            y, expected = y[valid], expected[valid]
        assert_close(y, expected, rtol=1e-8, atol=1e-8)
        for out in (y, expected):
            out.square().mean().backward()
    for filter, expected in zip(filters(ours), leaves, strict=True):
        for weight, leaf in zip(filter.parameters(), expected, strict=True):
            assert leaf.grad.abs().min() > 0
            assert_close(weight.grad.double(), leaf.grad, rtol=1e-4, atol=1e-6)


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
def test_layers_count_self_attention_alone(family):
    model = attach(build(family), GFSA, "-1:")
    (module,) = filtered_modules(model).values()
    assert type(module).__name__ == f"Filtered{FAMILIES[family].attention}"
    assert module.filter.wK.shape == (FAMILIES[family].num_heads,)
    with pytest.raises(ValueError, match=f"none of the {FAMILIES[family].num_layers} layers"):
        attach(model, GFSA, "9:")


@all_families
def test_detach_restores_the_configs(family):
    model = detach(attach(attach(build(family), Plain, ":1"), GFSA))
    configs = [module.config for module in model.modules() if hasattr(module, "config")]
    expected = "eager" if family in EAGER else "sdpa"
    assert {config._attn_implementation for config in configs} == {expected}
    assert not hasattr(model.config, "attention_core")


def test_albert_shares_one_filter_of_twelve_weights():
    sizes = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12}
    with torch.device("meta"):
        model = hf.AlbertModel(hf.AlbertConfig(vocab_size=10, **sizes))
    (filter,) = filters(attach(model, GFSA))
    assert sum(w.numel() for w in filter.parameters() if w.requires_grad) == 12


def test_a_pickle_is_filtered():
    model, given = randomize(attach(build("bert"), GFSA)), make_inputs("bert")
    assert torch.equal(pickle.loads(pickle.dumps(model))(**given)[0], model(**given)[0])


def test_dropout_forms_one_map_on_a_cpu():
    options = {"attention_probs_dropout_prob": 0.4, "hidden_dropout_prob": 0.0}
    model, given = randomize(attach(build("bert", **options), GFSA)).train(), make_inputs("bert")
    torch.manual_seed(3)
    y = model(**given)[0]
    torch.manual_seed(3)
    threshold = round(0.4 * 2**16)
    kept = []
    for _ in range(2):  # one seed for each layer
        kept.append(draw_kept(0.4, heads=3, n=9, batch=2))
        torch.randint(2**63 - 1, ())

    def H(A, i):
        weights = [w.view(-1, 1, 1) for w in filters(model)[i].parameters()]
        return reference.gfsa(A * kept[i] / (1 - threshold / 2**16), None, weights, 3)

    expected = use_reference_maps(detach(copy.deepcopy(model)), "bert", H)
    assert_close(y, expected(**given)[0])


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
