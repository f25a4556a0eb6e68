"""The late class token, and class attention."""

import timm
import torch
from attention_vision.models import ClassToken, build_model, list_blocks
from torch import nn


def test_a_late_class_token_sees_nothing_of_the_blocks_before() -> None:
    late = ClassToken(after=1)
    options = {"depth": 3, "embed_dim": 24, "num_heads": 3}
    model = build_model("deit_tiny_patch16_224", 10, 32, options, class_token=late).eval()
    sizes: list[int] = []
    for block in list_blocks(model):
        block.register_forward_hook(lambda m, inputs, output: sizes.append(output.shape[1]))
    model(torch.zeros(1, 3, 32, 32))
    assert sizes == [4, 5, 5]
    stock = timm.create_model("deit_tiny_patch16_224", img_size=32, num_classes=10, **options)
    model.load_state_dict(stock.state_dict())


def test_class_attention_leaves_the_patches_alone() -> None:
    options = {"depth": 2, "embed_dim": 24, "num_heads": 3}
    token = ClassToken(after=None, blocks=2)
    model = build_model("deit_tiny_patch16_224", 10, 32, options, class_token=token).eval()
    x = torch.randn(2, 3, 32, 32)
    before = model.forward_features(x)
    nn.init.constant_(model.class_blocks[0].gamma_1, 5.0)
    after = model.forward_features(x)
    assert torch.equal(before[:, 1:], after[:, 1:])
    assert not torch.allclose(before[:, 0], after[:, 0])
