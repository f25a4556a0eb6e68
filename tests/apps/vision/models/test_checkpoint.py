"""Weights from files: published ones, those of a run, and what is refused."""

import pytest
import torch
from attention_vision.models import build_model, load_checkpoint
from attention_vision.module import VisionClassifier
from experiment_kit.errors import UserError
from torch.testing import assert_close

CLASSES = 7
TINY = {"depth": 2, "embed_dim": 12, "num_heads": 3, "patch_size": 8}


def vit(**model_kwargs):
    return build_model("deit_tiny_patch16_224", CLASSES, 32, TINY | model_kwargs)


def test_a_stock_checkpoint_and_that_of_a_run_are_loaded(tmp_path) -> None:
    stock, x = vit().eval(), torch.randn(2, 3, 32, 32)
    published = {f"module.{name}": w for name, w in stock.state_dict().items()}
    torch.save({"model": published}, tmp_path / "published.pth")
    run = {f"model.{name}": w for name, w in stock.state_dict().items()}
    torch.save({"state_dict": run | {"loss.x": torch.ones(1)}}, tmp_path / "best.ckpt")
    for name in ("published.pth", "best.ckpt"):
        module = VisionClassifier(
            CLASSES, 32, model_kwargs=TINY, checkpoint=str(tmp_path / name), ema=0.9
        ).eval()
        assert_close(module.model(x), stock(x))
        assert_close(module.ema(x), stock(x))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"depth": 3}, "is of another model: it lacks blocks.2"),
        ({"depth": 1}, r"it has blocks\.1.*which this one lacks"),
        ({"embed_dim": 24}, r"cls_token is \(1, 1, 12\) there and \(1, 1, 24\) here"),
        ({"patch_size": 16}, "pos_embed is"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(options, sentence, tmp_path) -> None:
    torch.save(vit().state_dict(), tmp_path / "x.pth")
    with pytest.raises(UserError, match=sentence):
        load_checkpoint(vit(**options), str(tmp_path / "x.pth"))


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path) -> None:
    (tmp_path / "x.pth").write_text("no")
    with pytest.raises(UserError, match="is not a checkpoint"):
        load_checkpoint(vit(), str(tmp_path / "x.pth"))
    with pytest.raises(UserError, match="does not exist"):
        load_checkpoint(vit(), str(tmp_path / "y.pth"))
