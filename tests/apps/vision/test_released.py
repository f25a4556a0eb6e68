"""A network from a file of weights alone, in the layouts of the released code and of a run."""

from functools import partial

import pytest
import torch
from attention_core import GFSA, AttnScale, FeatScale, Plain, attach
from attention_vision.models.checkpoint import load_network, read_gfsa_order
from attention_vision.models.timm_models import build_model
from experiment_kit.errors import UserError
from torch.testing import assert_close

BACKBONE = "deit_tiny_patch16_224"
ODD = list(range(1, 12, 2))
# names of the released code -> ours, the mechanism, its blocks, and the sentence about it
RELEASED = {
    "attnscale": ({"attn.lamb": "attn.filter.omega"}, AttnScale, None, range(12),
                  "with AttnScale in 12 blocks"),
    "own": ({}, AttnScale, None, range(12), "with AttnScale in 12 blocks"),
    "gfsa": ({"attn.lamb": "attn.filter.wK"}, GFSA, None, ODD, "with GFSA of K = 3 in 6 blocks"),
    "featscale": ({"lamb1": "attn.tokens.s", "lamb2": "attn.tokens.t"}, Plain,
                  partial(FeatScale, gain=2), range(12), "with FeatScale of gain 2 in 12 blocks"),
    "cait": ({"lamb1": "attn.tokens.s", "lamb2": "attn.tokens.t"}, Plain,
             FeatScale, range(24), "with FeatScale of gain 1 in 24 blocks"),
}  # fmt: skip


def save_released(path, name: str, backbone: str = BACKBONE):
    """Save random weights in the layout of the released code; return the model that has them."""
    names, make_filter, tokens, blocks, _ = RELEASED[name]
    model = build_model(backbone, 7, 32).eval()
    attach(model, make_filter, list(blocks), tokens=tokens)
    weights = {k: w for k, w in model.state_dict().items() if not k.endswith((".w0", ".w1"))}
    for block in blocks:
        for released, own in names.items():
            weights[f"blocks.{block}.{released}"] = weights.pop(f"blocks.{block}.{own}").normal_()
    torch.save({"model": weights, "epoch": 499}, path)
    return model


@pytest.mark.parametrize("name", RELEASED)
def test_the_mechanism_and_the_sizes_are_read_from_the_names(name, tmp_path) -> None:
    backbone = "cait_xxs24_224" if name == "cait" else BACKBONE
    model = save_released(tmp_path / "x.pth", name, backbone)
    network, sentence = load_network(str(tmp_path / "x.pth"), backbone)
    x = torch.randn(2, 3, 32, 32)
    assert_close(network.eval()(x), model(x))
    assert sentence.endswith(f"on {backbone} {RELEASED[name][-1]}.")


def test_a_method_says_whose_parameters_have_one_name(tmp_path) -> None:
    path = str(tmp_path / "x.pth")
    save_released(path, "attnscale")
    network, sentence = load_network(path, "deit_tiny", "gfsa")
    assert isinstance(network.blocks[0].attn.filter, GFSA)
    assert "GFSA of K = 3 in 12 blocks" in sentence
    assert (read_gfsa_order("deit_small_24"), read_gfsa_order("deit_small_16")) == (4, 2)
    for method, sentence in {"featscale": "has parameters of attnscale", "x": "is one of"}.items():
        with pytest.raises(UserError, match=sentence):
            load_network(path, BACKBONE, method)
