"""Training of the image classifier: every method on every family, scored weights, whole runs."""

import json
from itertools import product
from pathlib import Path

import pytest
import torch
from attention_core import AGF, GFSA
from attention_vision.losses import HAT
from attention_vision.models.late_class_token import ClassToken
from attention_vision.models.timm_models import build_model
from attention_vision.module import VisionClassifier
from experiment_kit.app_cli import AppCLI
from experiment_kit.errors import UserError

from tests.apps.cases import VISION

VIT = {"depth": 2, "embed_dim": 24, "num_heads": 3, "patch_size": 8}
SWIN = {"depths": [2, 2], "embed_dim": 12, "num_heads": [2, 3], "window_size": 4}
FAMILIES = {"cait_xxs24": VIT, "swin_tiny": SWIN}
UNFIT = {  # a method that needs what a family does not have
    "cait_xxs24": {
        "agf": "no place for a kernel",
        **dict.fromkeys(["late_class_token", "class_attention"], "has no class token to move"),
    }
}
UNFIT["swin_tiny"] = UNFIT["cait_xxs24"] | {"diversepatch": "DiversePatch needs"}
UNFIT = {f: {**UNFIT.get(f, {}), "distillation": "needs a model with a dist"} for f in FAMILIES}


def build(backbone: str, method: str) -> VisionClassifier:
    sizes = f"--model.model_kwargs={json.dumps(FAMILIES[backbone])}"
    return VISION.build(VISION.tiny_arguments(sizes, backbone=backbone, method=method)).model


def training_loss(module: VisionClassifier) -> torch.Tensor:
    return module.training_step((torch.randn(4, 3, 32, 32), torch.arange(4)), 0)


@pytest.mark.parametrize(("backbone", "method"), list(product(FAMILIES, VISION.names("method"))))
def test_every_trained_weight_gets_a_gradient(backbone: str, method: str) -> None:
    """DDP waits for the gradient of a parameter that has none."""
    if message := UNFIT.get(backbone, {}).get(method):
        with pytest.raises((ValueError, UserError), match=message):
            training_loss(build(backbone, method))
        return
    module = build(backbone, method)
    training_loss(module).backward()
    trained = {name: w.grad for name, w in module.named_parameters() if w.requires_grad}
    assert [name for name, gradient in trained.items() if gradient is None] == []
    assert all(gradient.isfinite().all() for gradient in trained.values())


STEPS = ("--trainer.max_epochs=1", "--trainer.limit_train_batches=3", "--spectral.every_n_steps=3")


def test_raw_averaged_and_last_weights_and_the_training_images_are_scored(tmp_path) -> None:
    options = ("--trainer.precision=bf16-mixed", "--model.ema=0.5")
    options += ("--data.init_args.score_train=true", "--data.init_args.drop_last=false")
    result = VISION.fit(tmp_path, *STEPS, *options, recipe="deit_300").read_result()
    metrics = result["metrics"]
    parts = {"train/accuracy", "test/ema_accuracy", "last/accuracy", "last/train/accuracy"}
    assert parts <= set(metrics)
    for part in ("test/", "last/train/"):
        assert metrics[f"{part}error"] == pytest.approx(1 - metrics[f"{part}accuracy"], abs=1e-6)
    network = build_model("deit_tiny_patch16_224", 10, 32, VIT)
    assert result["parameters"] == sum(p.numel() for p in network.parameters())


def test_a_network_without_attention_trains(tmp_path) -> None:
    sizes = ("--model.backbone=resnet18", "--model.model_kwargs={}", "--trainer.precision=32")
    run = VISION.fit(tmp_path, *STEPS, *sizes, recipe="resnet")
    assert 0 <= run.read_result()["metrics"]["test/accuracy"] <= 1
    assert json.loads((run.folder / "spectral.json").read_text())["depth"] == []


def test_fine_tuning_starts_from_a_checkpoint_and_asks_for_one(tmp_path) -> None:
    stock = build_model("cait_xxs24_224", 10, 32, VIT)
    torch.save(stock.state_dict(), tmp_path / "stock.pth")
    chosen = {"backbone": "cait_xxs24", "method": "attnscale", "recipe": "cait_finetune"}
    options = (*STEPS, "--trainer.precision=32", "--model.optimizer.init_args.lr=1e-30")
    assert "are here: allpass weights " in VISION.run("fit", *options, **chosen).error
    start = f"--model.checkpoint={tmp_path / 'stock.pth'}"
    run = VISION.fit(tmp_path / "runs", *options, start, **chosen)
    best = torch.load(run.checkpoint_folder / "best.ckpt", weights_only=True)["state_dict"]
    assert torch.equal(best["model.head.weight"], stock.head.weight)


@pytest.mark.parametrize("key", ["model.checkpoint", "data.init_args.classes"])
def test_the_hash_of_a_run_depends_on_the_content_of_its_files(key: str, tmp_path) -> None:
    def find_folder(content: str) -> Path:
        (tmp_path / "x").write_text(content)
        data = "imagenet_100" if key.startswith("data") else "digits"
        arguments = VISION.arguments(f"--{key}={tmp_path / 'x'}", data=data)
        return AppCLI(VISION.app, ["fit", *arguments]).run.folder

    assert find_folder("one two") == find_folder("one two") != find_folder("two one")


@pytest.mark.parametrize(("options", "sentence"), [
    ({"drop_path": -0.1}, "model.drop_path must be a number from 0 to below 1, got -0.1"),
    ({"backbone": "deit_mini"}, "timm has no model 'deit_mini'; it has deit_base"),
    ({"backbone": "vgg11"}, "model.model_kwargs of vgg11: VGG"),
    ({"backbone": "resnet18", "filter": GFSA}, "ResNet has no attention that attach knows"),
    ({"class_token": ClassToken(12)}, "must be from 1 to 11 of the 12 blocks"),
    ({"ema": 1.0}, "model.ema must be a number from 0 to below 1, got 1.0"),
    ({"loss": HAT, "kernel": AGF}, "HAT takes no kernel that has a penalty"),
    ({"model_kwargs": {"deep": 3}}, "model.model_kwargs of deit_tiny_patch16_224: .*deep"),
    ({"model_kwargs": {"patch_size": 5}}, "patches of 5 by 5 do not divide images of 32"),
    ({"model_kwargs": {"num_classes": 5}}, "multiple values for keyword argument 'num_cl"),
])  # fmt: skip
def test_errors_of_arguments(options, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        VisionClassifier(7, 32, **options)


def test_accumulation_follows_from_the_global_batch(tmp_path) -> None:
    wrong = ("--model.global_batch=8", "--trainer.accumulate_grad_batches=5")
    error = VISION.run("fit", f"--run.folder={tmp_path}", *wrong).error
    assert "accumulate_grad_batches is 2 by model.global_batch" in error
