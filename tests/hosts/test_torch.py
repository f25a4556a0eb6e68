"""torch's MultiheadAttention: the dense equation, all masks and layouts, and no fused bypass."""

import copy
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from attention_core import AGF, GFSA, FeatScale, LayerScale, Plain, attach, detach
from torch import Tensor, nn
from torch.testing import assert_close

from tests.hosts.helpers import LEARNED, check_dense, randomize
from tests.hosts.torch_models import HEADS, WIDTH, N, build_encoder, enlarge, make_inputs

CAUSAL = torch.ones(N, N, dtype=torch.bool).triu(1)
PADDING = torch.arange(N).expand(2, N) >= torch.tensor([[N], [5]])
BIAS = torch.randn(N, N, generator=torch.Generator().manual_seed(2)).double()
ADDED = torch.zeros(2, N).double().masked_fill(PADDING, -torch.inf)
NO_FUTURE = nn.Transformer.generate_square_subsequent_mask(N)
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "padding": {"key_padding_mask": PADDING},
    "causal": {"attn_mask": CAUSAL},
    "hint": {"attn_mask": NO_FUTURE.double(), "is_causal": True},
    "bias": {"attn_mask": BIAS},
    "heads": {"attn_mask": BIAS.expand(2 * HEADS, N, N) + torch.arange(2 * HEADS).view(-1, 1, 1)},
    "causal-padding": {"attn_mask": CAUSAL, "key_padding_mask": PADDING},
    "bias-padding": {"attn_mask": BIAS, "key_padding_mask": ADDED},
}
all_masks = pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)


def build_layer(batch_first: bool = True) -> Any:
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first)
    return randomize(attach(enlarge(layer), LEARNED))


@all_masks
@pytest.mark.parametrize("batch_first", [True, False])
def test_output_maps_and_gradients_are_the_dense_ones(masks, batch_first):
    layer, x = build_layer(batch_first), torch.randn(2, N, WIDTH).double().requires_grad_()
    stock, given = detach(copy.deepcopy(layer)), x if batch_first else x.transpose(0, 1)

    def call(module: nn.Module, **options: bool) -> list[Tensor]:
        y, maps = module(given, given, given, **options, **masks)
        assert (maps is None) == (options == {"need_weights": False})
        return [y] if maps is None else [y, maps]

    for options in ({}, {"need_weights": False}, {"average_attn_weights": False}):
        check_dense(layer, stock, partial(call, **options), 1e-9, [x])


@all_masks
def test_plain_equals_torch(masks):
    stock = enlarge(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
    x, memory = (torch.randn(2, N, WIDTH).double() for _ in range(2))
    plain = attach(copy.deepcopy(stock), Plain)
    for q, k in ((x, x), (x, memory)):
        for options in ({}, {"average_attn_weights": False}, {"need_weights": False}):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about masks of two kinds
                expected = stock(q, k, k, **options, **masks)
            assert_close(plain(q, k, k, **options, **masks), expected)


def test_a_subclass_that_keeps_the_forward_of_torch_is_filtered():
    layer, x = build_layer(), torch.randn(2, N, WIDTH).double()
    own = detach(copy.deepcopy(layer))
    own.__class__ = kind = type("Own", (nn.MultiheadAttention,), {})
    attach(own, GFSA).filter = layer.filter
    assert torch.equal(copy.deepcopy(own)(x, x, x)[0], layer(x, x, x)[0])
    nn.utils.parametrizations.weight_norm(own, "in_proj_weight")
    with pytest.raises(ValueError, match="made after attach, as by a parametrization"):
        detach(own)
    nn.utils.parametrize.remove_parametrizations(own, "in_proj_weight")
    assert type(detach(own)) is kind


def test_samples_without_a_batch():
    layer, x = build_layer(False), torch.randn(N, WIDTH).double()
    batched, maps = layer(*[x.unsqueeze(1)] * 3, key_padding_mask=PADDING[1:])
    alone, map_alone = layer(x, x, x, key_padding_mask=PADDING[1])
    assert_close(alone, batched.squeeze(1))
    assert_close(map_alone, maps.squeeze(0))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_the_kernels_of_evaluation_do_not_bypass_the_filter(norm_first, nested):
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 20, batch_first=True, norm_first=norm_first)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about norm_first
        model = enlarge(nn.TransformerEncoder(layer, 3, enable_nested_tensor=nested))
    uses_nested, inputs = model.use_nested_tensor, make_inputs("encoder")
    valid = ~inputs["src_key_padding_mask"]
    expected = model(**inputs)
    randomize(attach(model, GFSA, "1:"))
    slow = model(**inputs)  # with gradients, where torch takes no kernel of its own
    assert (slow - expected)[valid].abs().max() > 1e-3
    with torch.no_grad():
        assert_close(model(**inputs)[valid], slow[valid])
        alone = model.layers[1](inputs["src"])
    assert_close(alone, model.layers[1](inputs["src"]))
    assert model.use_nested_tensor is False
    copied = copy.deepcopy(model)
    for detached in (detach(model), detach(copied)):
        assert detached.use_nested_tensor is uses_nested
        with torch.no_grad():
            assert_close(detached(**inputs)[valid], expected[valid])


def test_fully_masked_rows_stay_finite():
    layer, x = build_layer(), torch.randn(2, N, WIDTH).double()
    y, maps = layer(x, x, x, key_padding_mask=torch.ones(2, N, dtype=torch.bool))
    assert y.isfinite().all()
    assert maps.isfinite().all()


def test_calls_without_a_square_map_are_refused():
    layer, x = build_layer(), torch.randn(2, N, WIDTH).double()
    stock, given = detach(copy.deepcopy(layer)), (x + 1, x + 1, x)  # DETR's positions, not in v
    added = attach(copy.deepcopy(stock), GFSA)
    assert_close(added(*given), stock(*given))
    assert_close(torch.compile(added, backend="eager", fullgraph=True)(*given), stock(*given))
    for module in (layer, attach(stock, tokens=FeatScale)):
        with pytest.raises(ValueError, match="called as cross-attention"):
            module(x, x + 1, x + 1)
    with pytest.raises(ValueError, match="is_causal is a hint on attn_mask"):
        layer(x, x, x, is_causal=True)
    with pytest.raises(TypeError, match="a mask must be boolean or additive"):
        layer(x, x, x, key_padding_mask=PADDING.long(), attn_mask=BIAS)
    with pytest.raises(ValueError, match="no logits to add a bias to"):
        attach(detach(copy.deepcopy(layer)), kernel=AGF)(x, x, x, attn_mask=BIAS)
    nested = torch.nested.nested_tensor([x[0], x[1, :3]])
    with pytest.raises(ValueError, match="a filter takes no nested tensor"):
        layer(nested, nested, nested)


def test_functions_of_tokens_see_the_padding_in_both_layouts():
    for name, options in (("encoder", {"batch_first": True}), ("encoder-first", {})):
        model, inputs = build_encoder(**options), make_inputs(name)
        attach(model, tokens=partial(FeatScale))
        randomize(model, "tokens")
        src, axis = inputs["src"], 1 if options else 0
        whole = model(**inputs).narrow(1 - axis, 1, 1).narrow(axis, 0, 5)
        assert_close(whole, model(src.narrow(axis, 0, 5).narrow(1 - axis, 1, 1)))
        with pytest.raises(ValueError, match=r"FeatScale at .* does not see attn_mask"):
            model(src, mask=CAUSAL)
    attach(build_encoder(), tokens=LayerScale, position="norms")
    with pytest.warns(UserWarning, match="FeatScale mixes future tokens or padding"):
        attach(nn.Sequential(nn.LayerNorm(12)), tokens=FeatScale, position="norms")
