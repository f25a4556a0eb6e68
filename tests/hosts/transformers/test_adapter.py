"""Attention of transformers: the dense H, masks of padding and of the future, refusals."""

import copy
from functools import partial

import pytest
import torch
import transformers as hf
from attention_core import AGF, GFSA, AttnScale, CenteredAttention, Plain, attach, detach
from attention_core.hosts.transformers.interface import filtered_attention_forward
from torch import nn
from torch.testing import assert_close
from transformers.models.florence2 import modeling_florence2 as florence2
from transformers.models.lw_detr.modeling_lw_detr import LwDetrAttention

from tests.hosts.helpers import draw_weights, filtered_modules, filters, randomize
from tests.hosts.transformers import models
from tests.hosts.transformers.models import BART, CROSS, ENDS, FAMILIES, TEXT, VOCAB, WIDE, build


@pytest.mark.parametrize("family", FAMILIES)
def test_the_filters_map_is_returned_where_attentions_are_asked_for(family):
    model = randomize(attach(build(family), partial(GFSA, w0=0.2)))
    given = models.make_inputs(family)
    out = model(**given, output_attentions=True)
    assert torch.equal(out[0], model(**given)[0])
    maps = [*(out.get("encoder_attentions") or ()), *(out.get("decoder_attentions") or ())]
    maps = maps or list(out.attentions)
    sums = [f.w0 + f.w1 + f.wK for f in filters(model)]
    sums *= len(maps) // len(sums)  # ALBERT's layers share one
    for H, total in zip(maps, sums, strict=True):
        if family == "gpt_oss":  # the sinks take a part of each row
            assert H.shape[-2:] == (9, 9)
            continue
        assert_close(H.sum(-1), total.double().view(1, -1, 1).expand(H.shape[:3]))


def test_maps_of_layers_without_a_filter_are_their_attention():
    stock, given = build("bert"), models.make_inputs("bert", padded=True)
    ours = attach(copy.deepcopy(stock), GFSA, "1:")
    stock.set_attn_implementation("eager")
    expected = stock(**given, output_attentions=True).attentions
    assert_close(ours(**given, output_attentions=True).attentions, expected)


FILTERS = [partial(GFSA, K=4), AttnScale]  # powers of a map, and its average
CAUSAL = ("gpt2", "llama", "gpt_neox", "bart", "plbart", "t5")
# models that transformers runs eagerly: without a mask they see everything, not the past alone
EAGER_MODELS = {
    "PegasusXForConditionalGeneration": BART | {"d_model": 24, "block_size": 8},
    "BigBirdPegasusForConditionalGeneration": BART | {"attention_type": "original_full"},
    "SplinterModel": WIDE | ENDS | {"question_token_id": 3},
    "ClapTextModel": WIDE | ENDS,
    "AlignTextModel": WIDE | ENDS,
}


@pytest.mark.parametrize("family", TEXT)
@pytest.mark.parametrize("make", FILTERS)
def test_padding_is_truncation(family, make):
    model, given = randomize(attach(build(family), make)), models.make_inputs(family, padded=True)
    other = given | {"input_ids": given["input_ids"].clone()}
    other["input_ids"][1, -4:] = torch.randint(3, VOCAB, (4,))
    short = {"input_ids": given["input_ids"][1:, :-4]}
    short |= {k: v[1:] for k, v in given.items() if k.startswith("decoder")}
    y, replaced, truncated = (model(**x)[0] for x in (given, other, short))
    valid = slice(truncated.shape[1])
    assert_close(y[1:, valid], truncated)
    assert torch.equal(y[1:, valid], replaced[1:, valid])


@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize("make", FILTERS)
@pytest.mark.parametrize("padded", [True, False])
def test_the_future_does_not_leak(family, make, padded):
    model, given = randomize(attach(build(family), make)), models.make_inputs(family, padded=padded)
    key = "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"
    y = model(**given)[0]
    last = given[key].clone()
    last[:, 3:] = torch.randint(3, VOCAB, last[:, 3:].shape)
    other = model(**given | {key: last})[0]
    assert (y[:, :3] - other[:, :3]).abs().max() < 1e-12
    assert (y[:, 3:] - other[:, 3:]).abs().max() > 1e-3


def test_masks_of_four_axes_boolean_or_additive_are_obeyed():
    model, given = randomize(attach(build("bert"), GFSA)), models.make_inputs("bert")
    allowed = (torch.rand(2, 1, 9, 9) < 0.7) | torch.eye(9, dtype=torch.bool)
    lowest = torch.finfo(torch.float64).min
    additive = torch.zeros(allowed.shape).double().masked_fill(~allowed, lowest)
    y = model(**given, attention_mask=allowed)[0]
    assert_close(model(**given, attention_mask=additive)[0], y)
    assert (model(**given)[0] - y).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["bert", "t5", "bart"])
@pytest.mark.parametrize("make", FILTERS)
@pytest.mark.parametrize("dropped", [True, False])
def test_a_sample_of_padding_alone_leaves_everything_finite(family, make, dropped):
    model = randomize(attach(build(family), make)).train(dropped)
    given = models.make_inputs(family, padded=True)
    given["attention_mask"][1] = 0
    y = model(**given)[0]
    y.square().sum().backward()
    assert y.isfinite().all()
    assert all(w.grad.isfinite().all() for w in model.parameters() if w.grad is not None)


def test_cross_attention_stays_plain():
    model = attach(build("bert", **CROSS), GFSA)
    assert len(filters(model)) == 2
    assert type(model.encoder.layer[0].crossattention.self).__name__ == "BertCrossAttention"
    gpt2 = attach(build("gpt2", add_cross_attention=True), GFSA)
    assert len(filters(gpt2)) == 2
    states = torch.randn(2, 5, 21).double()
    assert gpt2(**models.make_inputs("gpt2"), encoder_hidden_states=states)[0].isfinite().all()


def test_a_kernel_gets_the_tokens_where_the_host_hands_no_arguments_on():
    for kind, axes in ((hf.SiglipVisionModel, ()), (hf.VideoMAEModel, (2,))):
        model = attach(kind(kind.config_class(**models.VIT, num_frames=2)).eval(), kernel=AGF)
        x = torch.randn(2, *axes, 3, 12, 12)
        y = model(x)[0]
        assert torch.equal(copy.deepcopy(model)(x)[0], y)  # no copy takes tokens that are left


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_a_module_called_as_cross_attention_is_refused(family):
    model = build(family)
    layer = model.get_decoder().layers[0] if family == "bart" else model.decoder.block[0].layer[1]
    cross = layer.encoder_attn if family == "bart" else layer.EncDecAttention
    attach(cross, Plain)
    assert model(**models.make_inputs(family))[0].isfinite().all()
    attach(cross, GFSA)
    with pytest.raises(ValueError, match="is called as cross-attention, which stays Plain"):
        model(**models.make_inputs(family))


def test_unsupported_attention_is_refused():
    x = torch.randn(1, 2, 3, 4)
    for name in ("sinks", "indices", "cache"):
        with pytest.raises(ValueError, match=f"Identity passes {name}, which no filter supports"):
            filtered_attention_forward(nn.Identity(), x, x, x, None, **{name: torch.ones(2)})
    model = build("bert")
    model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.warns(UserWarning, match="does not run in 'flash_attention_2'"):
        attach(model, GFSA)
    model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ValueError, match="is 'flash_attention_2', which ignores the filter"):
        model(**models.make_inputs("bert"))


def test_a_layer_that_is_detached_leaves_the_others_filtered():
    model, given = randomize(attach(build("bert"), GFSA)), models.make_inputs("bert")
    expected = copy.deepcopy(model)
    nn.init.zeros_(filters(expected)[0].wK)
    detach(model.encoder.layer[0])
    assert_close(model(**given)[0], expected(**given)[0])
    assert detach(model).config._attn_implementation == "sdpa"


def test_heads_are_counted_where_neither_module_nor_config_names_them():
    options = {"embed_dim": [8, 16], "depths": [1, 1], "num_heads": [2, 4], "num_groups": [4, 2]}
    options |= {"patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1]}
    config = florence2.Florence2VisionConfig(**options, patch_prenorm=[False, True], window_size=4)
    stock = florence2.Florence2VisionBackbone(config).eval()
    model, x = attach(copy.deepcopy(stock), GFSA), torch.randn(2, 3, 32, 32)
    assert [len(f.wK) for f in filters(model)] == [2, 4, 4, 2]  # windows and groups of channels
    assert_close(model(x)[0], stock(x)[0])
    decoder = hf.LwDetrConfig(d_model=32, decoder_self_attention_heads=4, group_detr=1)
    assert len(attach(nn.Sequential(LwDetrAttention(decoder, 0)), GFSA)[0].filter.wK) == 4


def test_stages_with_a_reduced_grid_of_keys_stay_plain():
    config = hf.SegformerConfig(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 2])
    with pytest.warns(UserWarning, match="stays as it is: SegformerAttention"):
        model = attach(hf.SegformerModel(config), GFSA)
    assert len(filtered_modules(model)) == 2
    model(torch.randn(1, 3, 64, 64))
    with pytest.raises(ValueError, match="has only attention that stays Plain"):
        attach(hf.SegformerModel(config).stages[0], GFSA)


@pytest.mark.parametrize("kind", [hf.SwinModel, hf.Swinv2Model])
@pytest.mark.parametrize("make", [AttnScale, CenteredAttention])
def test_averages_keep_to_the_regions_of_a_shifted_window(make, kind):
    options = {"image_size": 12, "patch_size": 1, "window_size": 4, "embed_dim": 8}
    stock = kind(kind.config_class(**options, depths=[2], num_heads=[2])).double().eval()
    layer = attach(stock, make).encoder.layers[0].blocks[1].attention
    draw_weights(layer, 0.7, 0)
    regions = torch.randint(2, (9, 16))
    allowed = regions[:, None] == regions[:, :, None]
    x = torch.randn(9, 16, 8).double()
    y, other = x.clone(), torch.randn(9, 16, 8).double()
    y[regions == 1] = other[regions == 1]
    before, after = (layer(z, torch.where(allowed, 0.0, -100.0).double())[0] for z in (x, y))
    assert_close(before[regions == 0], after[regions == 0])
    assert (before - after)[regions == 1].abs().max() > 1e-3


def build_eager(name: str) -> tuple[nn.Module, dict]:
    model_class = getattr(hf, name)
    model = model_class(model_class.config_class(**EAGER_MODELS[name])).double().eval()
    assert model.config._attn_implementation == "eager"
    given = {"input_ids": torch.randint(3, VOCAB, (2, 9))}
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = torch.randint(3, VOCAB, (2, 7))
    return model, given


@pytest.mark.parametrize("name", EAGER_MODELS)
@pytest.mark.parametrize("make", [GFSA, Plain])
def test_an_eager_model_is_itself_with_the_identity_and_its_decoder_sees_no_future(name, make):
    model, given = build_eager(name)
    draw_weights(model, 0.2)
    filtered = attach(copy.deepcopy(model), make)
    padded = torch.ones_like(given["input_ids"])
    padded[1, 5:] = 0
    for mask in ({}, {"attention_mask": padded}):  # some compute the softmax in float32
        assert_close(filtered(**given, **mask)[0], model(**given, **mask)[0], atol=1e-5, rtol=1e-5)
    y = randomize(filtered)(**given)[0]
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"][:, 3:] = 3
        assert_close(filtered(**given)[0][:, :3], y[:, :3])
    assert detach(filtered).config._attn_implementation == "eager"


def test_a_warning_names_unsupported_attention():
    model, _ = build_eager("PegasusXForConditionalGeneration")
    with pytest.warns(UserWarning, match=r"stays as it is: PegasusXGlobal\w+$") as found:
        attach(model, GFSA)
    assert found[0].filename == __file__
