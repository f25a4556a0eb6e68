"""Attention of transformers: the same model with Plain, the literal H with a filter."""

import copy
import pickle
from functools import partial

import pytest
import torch
import transformers as hf
from attention_core import AGF, GFSA, AttnScale, EigenSpectrum, Plain, Polynomial, attach, detach
from attention_core.attach import Filtered
from attention_core.operators.formed import drop
from attention_core.operators.softmax import _seed
from torch import nn
from torch.testing import assert_close

from tests.hosts.language import BERT, FAMILIES, TEXT, build, filters, inputs, literally, scramble

each_family = pytest.mark.parametrize("family", FAMILIES)
IDENTITIES = [GFSA, AttnScale, partial(Polynomial, K=4, basis="jacobi")]


def outcome(model: nn.Module, given: dict) -> torch.Tensor:
    return model(**given)[0]


@each_family
def test_plain_is_transformers_bit_for_bit(family):
    for padded in (False, True):
        stock, given = build(family), inputs(family, padded=padded)
        ours = attach(copy.deepcopy(stock), Plain)
        assert len(filters(ours)) == FAMILIES[family].count
        assert torch.equal(outcome(ours, given), outcome(stock, given))


@each_family
def test_identities_start_as_transformers(family):
    stock, given = build(family).float(), inputs(family, padded=True)
    given = {k: v.float() if v.is_floating_point() else v for k, v in given.items()}
    for make in IDENTITIES:
        ours = attach(copy.deepcopy(stock), make)
        assert_close(outcome(ours, given), outcome(stock, given), rtol=1e-4, atol=2e-5)


@each_family
def test_a_filter_is_the_literal_one_forward_and_backward(family):
    stock = build(family)
    ours = scramble(attach(copy.deepcopy(stock), partial(GFSA, K=4, learn=("w0", "w1", "wK"))))
    leaves = [[w.detach().double().requires_grad_() for w in f.parameters()] for f in filters(ours)]

    def H(A, i):
        w0, w1, wK = (w.view(-1, 1, 1) for w in leaves[i])
        return w0 * torch.eye(A.shape[-1]) + w1 * A + wK * (A + 3 * (A @ A - A))

    literal = literally(stock, family, H)
    for padded in (False, True):
        given = inputs(family, padded=padded)
        y, expected = outcome(ours, given), outcome(literal, given)
        assert_close(y, expected, rtol=1e-8, atol=1e-8)
        for out in (y, expected):
            out.square().mean().backward()
    for filter, own in zip(filters(ours), leaves, strict=True):
        for weight, leaf in zip(filter.parameters(), own, strict=True):
            assert leaf.grad.abs().min() > 0
            assert_close(weight.grad.double(), leaf.grad, rtol=1e-4, atol=1e-6)


@each_family
def test_the_filters_map_is_returned_where_attentions_are_asked_for(family):
    model, given = scramble(attach(build(family), partial(GFSA, w0=0.2))), inputs(family)
    out = model(**given, output_attentions=True)
    assert torch.equal(out[0], outcome(model, given))
    maps = [*(out.get("encoder_attentions") or ()), *(out.get("decoder_attentions") or ())]
    maps = maps or list(out.attentions)
    sums = [sum(w for w in f.parameters()) for f in filters(model)]
    sums *= len(maps) // len(sums)  # ALBERT's layers share one
    for H, total in zip(maps, sums, strict=True):
        assert_close(H.sum(-1), total.double().view(1, -1, 1).expand(H.shape[:3]))


def test_maps_of_layers_without_a_filter_are_their_attention():
    stock, given = build("bert"), inputs("bert", padded=True)
    ours = attach(copy.deepcopy(stock), GFSA, "1:")
    stock.set_attn_implementation("eager")
    expected = stock(**given, output_attentions=True).attentions
    assert_close(ours(**given, output_attentions=True).attentions, expected)


@each_family
def test_layers_count_self_attention_alone(family):
    model = attach(build(family), GFSA, "-1:")
    (module,) = [m for m in model.modules() if isinstance(m, Filtered)]
    assert type(module).__name__ == f"Filtered{FAMILIES[family].attention}"
    assert module.filter.wK.shape == (FAMILIES[family].heads,)
    with pytest.raises(ValueError, match=f"none of the {FAMILIES[family].count} layers"):
        attach(model, GFSA, "9:")


@each_family
def test_detach_restores_transformers(family):
    model, given = build(family), inputs(family)
    before, keys = outcome(model, given), list(model.state_dict())
    scramble(attach(attach(model, Plain, ":1"), GFSA))
    assert (outcome(model, given) - before).abs().max() > 1e-3
    detach(model)
    assert torch.equal(outcome(model, given), before)
    assert list(model.state_dict()) == keys
    implementations = {
        m.config._attn_implementation for m in model.modules() if hasattr(m, "config")
    }
    assert implementations == {"sdpa"}
    assert not hasattr(model.config, "attention_core")


def test_albert_shares_one_filter_of_twelve_weights():
    with torch.device("meta"):
        model = hf.AlbertModel(
            hf.AlbertConfig(
                vocab_size=10, hidden_size=768, num_attention_heads=12, num_hidden_layers=12
            )
        )
    (filter,) = filters(attach(model, GFSA))
    assert sum(w.numel() for w in filter.parameters() if w.requires_grad) == 12


def test_a_copy_and_a_pickle_are_filtered():
    model, given = scramble(attach(build("bert"), GFSA)), inputs("bert")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(outcome(other, given), outcome(model, given))
        scramble(other)
        assert not torch.equal(outcome(other, given), outcome(model, given))


def test_dropout_forms_one_map_on_a_cpu():
    options = {"attention_probs_dropout_prob": 0.4, "hidden_dropout_prob": 0.0}
    model, given = scramble(attach(build("bert", **options), GFSA)).train(), inputs("bert")
    torch.manual_seed(3)
    y = outcome(model, given)
    torch.manual_seed(3)
    kept = [drop(torch.ones(2, 3, 9, 9).double(), 0.4, _seed()) for _ in range(2)]

    def H(A, i):
        A = A * kept[i]
        w0, w1, wK = (w.view(-1, 1, 1) for w in filters(model)[i].parameters())
        return w0 * torch.eye(9) + w1 * A + wK * (A + 2 * (A @ A - A))

    literal = literally(detach(copy.deepcopy(model)), "bert", H)
    assert_close(y, outcome(literal, given))


def test_gradient_checkpointing_changes_nothing():
    model, given = attach(build("bert"), partial(GFSA, wK=0.3)).train(), inputs("bert", padded=True)
    grads = []
    for _ in range(2):
        model.zero_grad()
        torch.manual_seed(5)
        outcome(model, given).square().sum().backward()
        grads.append([w.grad for w in model.parameters() if w.grad is not None])
        model.activation_checkpointing_enable()
    assert_close(grads[1], grads[0])


@pytest.mark.parametrize("family", TEXT)
def test_a_kernel_and_a_spectrum_have_no_place(family):
    model = build(family)
    with pytest.raises(ValueError, match="has no place for a kernel"):
        attach(model, kernel=AGF)
    with pytest.raises(ValueError, match="has no place for a reparameterisation"):
        attach(model, reparam=EigenSpectrum)
    assert not filters(model)


def test_it_compiles_whole():
    model = hf.BertModel(hf.BertConfig(**BERT)).eval()
    model, given = scramble(attach(model, GFSA)), inputs("bert", padded=True)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_close(outcome(compiled, given), outcome(model, given))
