"""What a filtered model may not see: padding, the future, another sequence; and what it refuses."""

from functools import partial

import pytest
import torch
import transformers as hf
from attention_core import GFSA, AttnScale, CenteredAttention, Plain, Polynomial, attach
from attention_core.hosts.transformers.interface import filtered_attention_forward
from torch import nn
from torch.testing import assert_close

from tests.hosts.language import BERT, PAD, TEXT, VOCAB, build, filters, inputs, scramble

FILTERS = [partial(GFSA, K=4), AttnScale, CenteredAttention, partial(Polynomial, K=3)]
CAUSAL = ("gpt2", "llama", "gpt_neox", "bart", "plbart", "t5")
each_text = pytest.mark.parametrize("family", TEXT)


@each_text
@pytest.mark.parametrize("make", FILTERS)
def test_padding_is_truncation(family, make):
    model, given = scramble(attach(build(family), make)), inputs(family, padded=True)
    other = given | {"input_ids": given["input_ids"].clone()}
    other["input_ids"][1, -4:] = torch.randint(3, VOCAB, (4,))
    short = {"input_ids": given["input_ids"][1:, :-4]}
    short |= {k: v[1:] for k, v in given.items() if k.startswith("decoder")}
    y, replaced, truncated = (model(**x)[0] for x in (given, other, short))
    real = slice(truncated.shape[1])
    assert_close(y[1:, real], truncated)
    assert torch.equal(y[1:, real], replaced[1:, real])


@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize("make", FILTERS)
@pytest.mark.parametrize("padded", [True, False])
def test_the_future_is_not_seen(family, make, padded):
    model, given = scramble(attach(build(family), make)), inputs(family, padded=padded)
    key = "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"
    y = model(**given)[0]
    last = given[key].clone()
    last[:, 3:] = torch.randint(3, VOCAB, last[:, 3:].shape)
    other = model(**given | {key: last})[0]
    assert (y[:, :3] - other[:, :3]).abs().max() < 1e-12
    assert (y[:, 3:] - other[:, 3:]).abs().max() > 1e-3


@pytest.mark.parametrize("make", FILTERS)
def test_a_mask_that_says_nothing_is_no_mask(make):
    for family in TEXT:
        model, given = scramble(attach(build(family), make)), inputs(family)
        full = given | {"attention_mask": torch.ones_like(given["input_ids"])}
        assert_close(model(**full)[0], model(**given)[0])


def test_masks_of_four_axes_boolean_or_additive_are_obeyed():
    model, given = scramble(attach(build("bert"), GFSA)), inputs("bert")
    allowed = torch.rand(2, 1, 9, 9) < 0.7
    allowed |= torch.eye(9, dtype=torch.bool)
    additive = torch.zeros(allowed.shape).double()
    additive = additive.masked_fill(~allowed, torch.finfo(additive.dtype).min)
    y = model(**given, attention_mask=allowed)[0]
    assert_close(model(**given, attention_mask=additive)[0], y)
    assert (model(**given)[0] - y).abs().max() > 1e-3


def test_left_padding_is_truncation():
    model = scramble(attach(build("gpt2"), partial(GFSA, w0=0.3)))
    ids = torch.randint(3, VOCAB, (1, 6))
    padded = torch.cat([torch.full((1, 3), PAD), ids], 1)
    mask = (padded != PAD).long()
    position = torch.arange(-3, 6).clamp(min=0)[None]
    y = model(padded, attention_mask=mask, position_ids=position)[0]
    assert y.isfinite().all()
    assert_close(y[:, 3:], model(ids)[0])


@pytest.mark.parametrize("family", ["bert", "t5", "bart"])
@pytest.mark.parametrize("make", FILTERS)
@pytest.mark.parametrize("dropped", [True, False])
def test_a_sample_of_padding_alone_leaves_everything_finite(family, make, dropped):
    model, given = scramble(attach(build(family), make)).train(dropped), inputs(family, padded=True)
    given["attention_mask"][1] = 0
    y = model(**given)[0]
    y.square().sum().backward()
    assert y.isfinite().all()
    assert all(w.grad.isfinite().all() for w in model.parameters() if w.grad is not None)


def decoder(**options) -> nn.Module:
    config = hf.BertConfig(**BERT, is_decoder=True, add_cross_attention=True, **options)
    return hf.BertModel(config).eval()


def test_cross_attention_stays_plain():
    model = attach(decoder(), GFSA)
    assert len(filters(model)) == 2
    layer = model.encoder.layer[0]
    assert type(layer.crossattention.self).__name__ == "BertCrossAttention"
    with pytest.raises(
        ValueError, match="BertCrossAttention is cross-attention, which stays Plain"
    ):
        attach(decoder().encoder.layer[0].crossattention.self, GFSA)
    gpt2 = attach(build("gpt2", add_cross_attention=True), GFSA)
    assert len(filters(gpt2)) == 2
    states = torch.randn(2, 5, 21).double()
    assert gpt2(**inputs("gpt2"), encoder_hidden_states=states)[0].isfinite().all()


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_a_module_called_as_cross_attention_is_refused(family):
    model = build(family)
    layer = model.get_decoder().layers[0] if family == "bart" else model.decoder.block[0].layer[1]
    cross = layer.encoder_attn if family == "bart" else layer.EncDecAttention
    attach(cross, Plain)
    before = model(**inputs(family))[0]
    assert before.isfinite().all()
    attach(cross, GFSA)
    with pytest.raises(ValueError, match="is called as cross-attention, which stays Plain"):
        model(**inputs(family))


def test_what_no_filter_knows_is_refused():
    x = torch.randn(1, 2, 3, 4)
    for name in ("softcap", "s_aux", "cache"):
        with pytest.raises(ValueError, match=f"Identity passes {name}, which no filter supports"):
            filtered_attention_forward(nn.Identity(), x, x, x, None, **{name: torch.ones(2)})
    model = attach(build("bert"), GFSA)
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="is 'sdpa', which ignores the filter"):
        model(**inputs("bert"))
    model.set_attn_implementation("filtered")
    model(**inputs("bert"))
    with pytest.raises(ValueError, match=r"no attention to filter in NystromformerModel: looked"):
        attach(hf.NystromformerModel(hf.NystromformerConfig(**BERT)), GFSA)
