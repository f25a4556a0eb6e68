"""Checkpoints of other training, the late class token, and class attention."""

from argparse import Namespace

import pytest
import torch
from attention_vision.models.checkpoint import load_checkpoint
from attention_vision.models.late_class_token import ClassToken
from attention_vision.models.timm_models import build_model, list_blocks
from attention_vision.module import VisionClassifier
from experiment_kit.errors import UserError
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close

TINY = {"depth": 2, "embed_dim": 12, "num_heads": 3, "patch_size": 8}


def build_vit(class_token: ClassToken | None = None, **model_kwargs):
    options = TINY | model_kwargs
    return build_model("deit_tiny_patch16_224", 7, 32, options, class_token=class_token).eval()


def test_a_published_checkpoint_and_that_of_a_run_are_loaded(tmp_path) -> None:
    stock, x = build_vit(), torch.randn(2, 3, 32, 32)

    def rename(prefix: str, network: nn.Module = stock) -> dict[str, torch.Tensor]:
        return {f"{prefix}{name}": w for name, w in network.state_dict().items()}

    own, teacher = rename(""), rename("loss.teacher.", build_vit())
    contents = {
        "deit.pth": {"model": rename("module."), "model_ema": teacher, "args": Namespace(lr=1)},
        "best.ckpt": {"state_dict": teacher | rename("model.") | {"loss.x": torch.ones(1)}},
        "other.ckpt": {"state_dict": rename("model.net.")},
        "own.pth": {"net": {n.replace(".0.", ".0._orig_mod."): w for n, w in own.items()}},
    }
    for name, content in contents.items():
        torch.save(content, tmp_path / name)
    save_file(own, tmp_path / "renamed.bin")
    for name in (*contents, "renamed.bin"):
        options = {"model_kwargs": TINY, "checkpoint": str(tmp_path / name), "ema": 0.9}
        module = VisionClassifier(7, 32, **options).eval()
        assert_close(module.model(x), stock(x))
        assert_close(module.ema(x), stock(x))
        other = VisionClassifier(5, 32, **options).eval().model  # its head is new
        assert_close(other.forward_features(x), stock.forward_features(x))
    torch.save(build_model("resnet18", 7, 32).state_dict(), tmp_path / "x.pth")
    load_checkpoint(build_model("resnet18", 5, 32), str(tmp_path / "x.pth"))  # its head is `fc`


@pytest.mark.parametrize(("make_content", "sentence"), [
    (lambda own: build_vit(depth=1).state_dict(), "is of another model: it lacks blocks.1"),
    (lambda own: build_vit(depth=3).state_dict(), r"it has blocks\.2.*which this one lacks"),
    (lambda own: build_vit(embed_dim=24).state_dict(),
     r"cls_token is \(1, 1, 24\) there and \(1, 1, 12\) here"),
    (lambda own: {"student": own, "teacher": own}, r"several models \(student, teacher\)"),
    (lambda own: {f"{x}{n}": w for x in "ab" for n, w in own.items()}, r"several models \(a, b\)"),
    (lambda own: {"model": own, "config": nn.Identity()}, "Unsupported global: .*Identity"),
    (lambda own: [*own], "is not a readable checkpoint, as torch.*: 'list' object"),
])  # fmt: skip
def test_a_file_of_another_model_or_several_is_refused(make_content, sentence, tmp_path) -> None:
    torch.save(make_content(build_vit().state_dict()), tmp_path / "x.pth")
    with pytest.raises(UserError, match=sentence):
        load_checkpoint(build_vit(), str(tmp_path / "x.pth"))


def test_blocks_before_a_late_class_token_do_not_see_it() -> None:
    model = build_vit(ClassToken(after=1), depth=3)
    lengths: list[int] = []
    for block in list_blocks(model):
        block.register_forward_hook(lambda m, inputs, output: lengths.append(output.shape[1]))
    model(torch.zeros(1, 3, 32, 32))
    assert lengths == [16, 17, 17]
    model.load_state_dict(build_vit(depth=3).state_dict())


def test_class_attention_does_not_change_the_patches() -> None:
    model = build_vit(ClassToken(after=None, blocks=2))
    x = torch.randn(2, 3, 32, 32)
    before = model.forward_features(x)
    nn.init.constant_(model.class_blocks[0].gamma_1, 5.0)
    after = model.forward_features(x)
    assert torch.equal(before[:, 1:], after[:, 1:])
    assert not torch.allclose(before[:, 0], after[:, 0])
