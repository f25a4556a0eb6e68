"""Speech recognisers of speechbrain: filters in the encoder, and a decoder that stays as it is."""

import copy
from functools import partial

import pytest
import torch
from attention_core import GFSA, ContraNorm, EigenSpectrum, Plain, attach, detach
from speechbrain.nnet.attention import MultiheadAttention
from torch import Tensor, nn
from torch.testing import assert_close

from tests.hosts.speech import (
    DEPTH,
    FILTERS,
    HEADS,
    KINDS,
    LENGTHS,
    REAL,
    WIDTH,
    B,
    N,
    U,
    asr,
    call,
    each_encoder,
    each_kind,
    filtered,
    layer,
    positions,
    scramble,
)

# of torch, for the masks that speechbrain gives it
pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched:UserWarning")


@pytest.fixture
def speech() -> dict[str, Tensor]:
    tokens = torch.randint(1, 13, (B, U))
    return {"src": torch.randn(B, N, 7), "tgt": tokens, "wav_len": LENGTHS}


@each_encoder
@each_kind
def test_plain_is_speechbrain(speech, encoder, kind):
    stock = asr(encoder, kind).train()
    ours = attach(copy.deepcopy(stock), Plain)
    assert len(filtered(ours)) == DEPTH
    bitwise = {"rtol": 0, "atol": 0} if kind == "RelPosMHAXL" else {}
    for model in (stock, ours):
        sum(y.square().sum() for y in model(**speech)).backward()
    for y, expected in zip(ours(**speech), stock(**speech), strict=True):
        assert_close(y, expected, **bitwise)
    for (name, p), q in zip(ours.named_parameters(), stock.parameters(), strict=True):
        assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4, msg=name)
    with torch.no_grad():
        for y, expected in zip(ours.eval()(**speech), stock.eval()(**speech), strict=True):
            assert_close(y, expected, **bitwise)


def test_dropped_relative_positions_are_speechbrains_bit_for_bit(speech):
    stock = asr("branchformer", "RelPosMHAXL", dropout=0.3).train()
    found = []
    for model in (stock, attach(copy.deepcopy(stock), Plain)):
        torch.manual_seed(1)
        found.append(model(**speech)[0])
    assert torch.equal(*found)


def test_dropout_of_the_fused_map_is_of_training_alone():
    x = torch.randn(B, N, WIDTH).double()
    module = attach(layer("regularMHA", dropout=0.5), FILTERS["gfsa"])
    assert torch.equal(call(module, x)[0], call(module, x)[0])
    H = call(module, x, return_attn_weights=True)[1]
    module.train()
    assert not torch.equal(call(module, x)[0], call(module, x)[0])
    assert torch.equal(call(module, x, return_attn_weights=True)[1], H)


@each_kind
def test_a_value_bias_and_a_mask_of_pairs_are_the_hosts(kind):
    x, bias = torch.randn(B, N, WIDTH), {"vbias": True} if kind == "RelPosMHAXL" else {}
    host = layer(kind, **bias).float()
    pairs = torch.rand(B * HEADS, N, N) < 0.4
    pairs[:, :, 0] = False  # a row without any key is not a number in the host
    added = torch.randn(N, N).masked_fill(pairs[0], -torch.inf)
    padding = torch.arange(N) >= REAL[:, None]
    for mask, ignored in [(pairs, None), (pairs[0], padding), (added, padding), (added, None)]:
        given = {"attn_mask": mask, "key_padding_mask": ignored}
        y = call(host, x, **given)[0]
        assert_close(call(attach(host, Plain), x, **given)[0], y)
        detach(host)


def test_positions_may_be_added_to_the_fused_logits():
    x, host, place = torch.randn(B, N, WIDTH), layer("regularMHA").float(), torch.randn(N, N)
    ours = attach(copy.deepcopy(host), Plain)
    for mask in (None, torch.randn(N, N)):
        expected = host(x, x, x, None if mask is None else mask.clone(), pos_embs=place)[0]
        assert_close(ours(x, x, x, mask, pos_embs=place)[0], expected)


@each_kind
def test_names_are_unchanged_and_detach_restores(speech, kind):
    model = asr("branchformer", kind)
    before, keys = model(**speech), set(model.state_dict())
    new = set(scramble(attach(model, GFSA)).state_dict()) - keys
    places = {f"encoder.layers.{i}.mha_layer.filter" for i in range(DEPTH)}
    assert new == {f"{place}.{w}" for place in places for w in ("w0", "w1", "wK")}
    assert (model(**speech)[0] - before[0]).abs().max() > 1e-3
    detach(model)
    assert set(model.state_dict()) == keys
    assert {type(block.mha_layer) for block in model.encoder.layers} == {KINDS[kind]}
    assert all(torch.equal(y, z) for y, z in zip(model(**speech), before, strict=True))


@each_encoder
def test_the_decoder_is_untouched_and_causal(speech, encoder):
    stock = asr(encoder, "RelPosMHAXL")
    model = scramble(attach(copy.deepcopy(stock), GFSA))
    assert all(name.startswith("encoder.") for name in filtered(model))
    assert list(model.decoder.state_dict()) == list(stock.decoder.state_dict())
    memory = torch.randn(B, N, WIDTH)
    y = model.decode(speech["tgt"], memory)[0]
    assert torch.equal(y, stock.decode(speech["tgt"], memory)[0])
    other = speech["tgt"].clone()
    other[:, 3:] = 1 + (other[:, 3:] + 4) % 12
    again = model(speech["src"], other)[1]
    assert_close(again[:, :3], model(speech["src"], speech["tgt"])[1][:, :3])


def test_layers_are_a_slice_of_the_encoder():
    model = attach(asr(num_encoder_layers=4), GFSA, "1::2")
    assert filtered(model) == [f"encoder.layers.{i}.self_att" for i in (1, 3)]
    bare = attach(asr(num_encoder_layers=3).encoder, GFSA, "-1:")
    assert filtered(bare) == ["layers.2.self_att"]


@pytest.mark.parametrize("kind", ["hypermixing", "RoPEMHA"])
@pytest.mark.parametrize("decoders", [0, 1])
def test_other_attention_is_refused(kind, decoders):
    model = asr("conformer", kind, nhead=2, num_decoder_layers=decoders)
    plain = "decoders of speechbrain stay Plain" if decoders else "RelPosMHAXL"
    with pytest.raises(ValueError, match=f"no attention to filter in TransformerASR: .*{plain}"):
        attach(model, GFSA)


def test_a_decoder_alone_is_refused():
    with pytest.raises(ValueError, match="decoders of speechbrain stay Plain"):
        attach(asr().decoder, GFSA)
    other = nn.ModuleDict({"decoder": nn.ModuleList([layer("RelPosMHAXL")])})  # the conformer's
    with pytest.raises(ValueError, match="decoders of speechbrain stay Plain"):
        attach(other, GFSA)


@each_kind
def test_a_filtered_layer_is_no_cross_attention(kind):
    x, module = torch.randn(B, N, WIDTH).double(), attach(layer(kind), Plain)
    same = module(x, x.clone(), x, pos_embs=positions(module))[0]
    assert torch.equal(same, call(module, x)[0])
    with pytest.raises(ValueError, match="called as cross-attention, which stays Plain"):
        module(x, x + 1, x + 1, pos_embs=positions(module))


def test_keys_of_the_hosts_own_are_refused():
    for option in ("add_bias_kv", "add_zero_attn"):
        with pytest.raises(ValueError, match="a map that is not square"):
            attach(MultiheadAttention(HEADS, WIDTH, **{option: True}), GFSA)


@each_kind
def test_slots_without_a_place_are_refused(kind):
    with pytest.raises(ValueError, match=f"{KINDS[kind].__name__} has no place for a repar"):
        attach(asr(kind=kind), reparam=EigenSpectrum)
    with pytest.raises(ValueError, match="the norms of TransformerASR see no mask"):
        attach(asr(kind=kind), tokens=partial(ContraNorm, scale=0.1), position="norms")
