"""Training of the image classifier: every method on every family, scored weights, whole runs."""

import json
from itertools import product
from pathlib import Path

import pytest
import torch
from attention_core import AGF, GFSA, Plain
from attention_vision import APP
from attention_vision.losses import HAT
from attention_vision.models import ClassToken, build_model, list_blocks
from attention_vision.module import VisionClassifier
from experiment_kit.cli import AppCLI, run_app
from experiment_kit.errors import UserError
from experiment_kit.launch.overlays import overlay_arguments

from tests.apps.overlays import VISION
from tests.apps.tiny import only_run

METHODS = VISION.names("method")
FAMILIES = {
    "deit_tiny": {"depth": 2, "embed_dim": 24, "num_heads": 3, "patch_size": 8},
    "cait_xxs24": {"depth": 2, "embed_dim": 24, "num_heads": 3, "patch_size": 8},
    "swin_tiny": {"depths": [2, 2], "embed_dim": 12, "num_heads": [2, 3], "window_size": 4},
}
NO_PLACE = {  # what a method needs that a family has not
    **dict.fromkeys(product(["cait_xxs24", "swin_tiny"], ["agf"]), "no place for a kernel"),
    **dict.fromkeys(
        product(["cait_xxs24", "swin_tiny"], ["late_class_token", "class_attention"]),
        "has no class token to move",
    ),
    ("swin_tiny", "diversepatch"): "DiversePatch needs",
}


def narrow(backbone: str = "deit_tiny", method: str = "plain") -> tuple[str, ...]:
    small = (
        f"--model.model_kwargs={json.dumps(FAMILIES[backbone])}",
        "--data.init_args.image_size=32",
        "--data.init_args.batch_size=4",
    )
    late = ("--model.class_token.after=1",) if method == "late_class_token" else ()
    return (*small, *late)


@pytest.mark.parametrize(("backbone", "method"), list(product(FAMILIES, METHODS)))
def test_every_trained_weight_gets_a_gradient(backbone: str, method: str) -> None:
    """DDP waits for the gradient of a parameter that has none."""
    chosen = {"backbone": backbone, "method": method}
    if sentence := NO_PLACE.get((backbone, method)):
        with pytest.raises((ValueError, UserError), match=sentence):
            training_loss(VISION.model(*narrow(**chosen), **chosen))
        return
    module = VISION.model(*narrow(**chosen), **chosen)
    training_loss(module).backward()
    trained = {name: w.grad for name, w in module.named_parameters() if w.requires_grad}
    assert [name for name, gradient in trained.items() if gradient is None] == []
    assert all(gradient.isfinite().all() for gradient in trained.values())


def training_loss(module: VisionClassifier) -> torch.Tensor:
    return module.training_step((torch.randn(4, 3, 32, 32), torch.arange(4)), 0)


def fit(folder: Path, *extra: str, backbone: str = "deit_tiny", method: str = "plain", **chosen):
    """Train in this process for a few steps, and return the one run in the folder."""
    settings = (
        f"--run.folder={folder}",
        "--trainer.limit_train_batches=3",
        "--trainer.limit_val_batches=2",
        "--trainer.limit_test_batches=2",
        "--trainer.enable_progress_bar=false",
        "--trainer.accelerator=cpu",
        "--model.global_batch=null",
        "--spectral.every_n_steps=3",
    )
    chosen = {"data": "digits", "profile": "smoke"} | chosen
    everything = (*narrow(backbone, method), *settings, *extra)
    named = {"backbone": backbone, "method": method, **chosen}
    run_app(APP, ["fit", *overlay_arguments("vision", everything, **named)])
    return only_run(folder)


@pytest.mark.parametrize(
    ("backbone", "method"),
    [("cait_xxs24", "featscale"), ("swin_tiny", "attnscale")],
)
def test_a_run_is_watched_and_ends_with_a_result(backbone, method, tmp_path) -> None:
    # null is the data's own size, which the model is told
    run = fit(tmp_path, "--data.init_args.image_size=null", backbone=backbone, method=method)
    assert {"test/accuracy", "test/loss"} <= set(run.read_result()["metrics"])
    watched = json.loads((run.folder / "spectral.json").read_text())
    depth = sum(FAMILIES[backbone].get("depths", [FAMILIES[backbone].get("depth")]))
    assert len(watched["depth"]) == depth + 1
    assert len(watched["response"]) == depth
    name = "tokens" if method == "featscale" else "filter"
    assert any(f".{name}." in key for key in watched["coefficients"])


def test_raw_and_averaged_weights_are_both_scored(tmp_path) -> None:
    precision = "--trainer.precision=bf16-mixed"
    run = fit(tmp_path, precision, "--model.ema=0.5", recipe="deit_300")
    metrics = run.read_result()["metrics"]
    assert {"test/accuracy", "test/ema_accuracy"} <= set(metrics)
    assert run.read_result()["parameters"] == sum(
        p.numel()
        for p in build_model("deit_tiny_patch16_224", 10, 32, FAMILIES["deit_tiny"]).parameters()
    )


def test_fine_tuning_starts_from_a_checkpoint_and_asks_for_one(tmp_path, capsys) -> None:
    options = FAMILIES["cait_xxs24"]
    stock = build_model("cait_xxs24_224", 10, 32, options)
    torch.save(stock.state_dict(), tmp_path / "stock.pth")
    chosen = {"backbone": "cait_xxs24", "method": "attnscale", "recipe": "cait_finetune"}
    plain = "--trainer.precision=32"
    with pytest.raises(SystemExit):
        fit(tmp_path / "runs", plain, **chosen)
    assert "pretrained.pth does not exist" in capsys.readouterr().err
    start = f"--model.checkpoint={tmp_path / 'stock.pth'}"
    run = fit(tmp_path / "runs", plain, start, "--model.optimizer.init_args.lr=0", **chosen)
    best = torch.load(run.checkpoint_folder / "best.ckpt", weights_only=True)["state_dict"]
    assert torch.equal(best["model.head.weight"], stock.head.weight)


def test_averaged_weights_follow_the_optimiser_with_their_decay() -> None:
    module = VisionClassifier(10, 32, model_kwargs=FAMILIES["deit_tiny"], ema=0.75)
    weight, averaged = module.model.head.weight, module.ema.module.head.weight
    module.ema.update_parameters(module.model)
    before = averaged.clone()
    with torch.no_grad():
        weight.add_(1.0)
    module.ema.update_parameters(module.model)
    assert torch.allclose(averaged, before + 0.25)
    assert not averaged.requires_grad


def test_layers_beyond_the_chosen_stay_plain() -> None:
    options = FAMILIES["deit_tiny"] | {"depth": 4}
    module = VisionClassifier(10, 32, model_kwargs=options, filter=GFSA, layers="1::2")
    kinds = [type(block.attn.filter) for block in list_blocks(module.model)]
    assert kinds == [Plain, GFSA, Plain, GFSA]


@pytest.mark.parametrize("key", ["model.checkpoint", "data.init_args.classes"])
def test_a_run_depends_on_what_its_files_hold(key: str, tmp_path) -> None:
    def planned(content: str) -> Path:
        (tmp_path / "x").write_text(content)
        data = "imagenet_100" if key.startswith("data") else "digits"
        chosen = {"data": data, "backbone": "deit_tiny", "method": "plain"}
        arguments = overlay_arguments("vision", [f"--{key}={tmp_path / 'x'}"], **chosen)
        return AppCLI(APP, ["fit", *arguments]).run.folder

    assert planned("one two") == planned("one two") != planned("two one")


def test_a_second_way_to_accumulate_gradients_is_refused(tmp_path, capsys) -> None:
    both = ("--model.global_batch=8", "--trainer.accumulate_grad_batches=5")
    with pytest.raises(SystemExit):
        fit(tmp_path, *both)
    assert "accumulate_grad_batches is 2 by model.global_batch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"drop_path": -0.1}, r"model.drop_path must be in \[0, 1\), got -0.1"),
        ({"dropout": 1.0}, r"model.dropout must be in \[0, 1\), got 1.0"),
        ({"backbone": "deit_mini"}, "timm has no model 'deit_mini'; it has deit_base"),
        ({"model_kwargs": {"deep": 3}}, "model.model_kwargs of deit_tiny_patch16_224: .*deep"),
        ({"layers": "12:"}, "names none of the 12 layers"),
        ({"class_token": ClassToken(12)}, "must be from 1 to 11 of the 12 blocks"),
        ({"ema": 1.0}, r"model.ema is a decay in \[0, 1\), got 1.0"),
        ({"loss": HAT, "kernel": AGF}, "HAT takes no kernel that has a penalty"),
        ({"backbone": "resnet18"}, "model.model_kwargs of resnet18: ResNet"),
        ({"backbone": "deit"}, r"timm has no model 'deit'; it has deit"),
        (
            {"backbone": "deit_tiny_patch16_224.nosuch"},
            "model.model_kwargs of deit_tiny_patch16_224.no",
        ),
        ({"model_kwargs": {"patch_size": 5}}, "patches of 5 by 5 do not divide images of 32"),
        ({"model_kwargs": {"patch_size": 0}}, "model.model_kwargs of deit_tiny_patch16_224: "),
        ({"model_kwargs": {"num_classes": 5}}, "model.model_kwargs may not set num_classes"),
        ({"model_kwargs": {"img_size": 64}}, "model.model_kwargs may not set img_size"),
    ],
)
def test_errors_of_arguments(options, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        VisionClassifier(7, 32, **options)


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("--model.mix={mixup:0.8}", "model.mix: expected options as a mapping, or null, got {mix"),
        ('--model.class_token={"after": "x"}', "model.class_token.after: expected int or null"),
        ('--data.init_args.augment={"repeat": 3}', "there is no option 'augment.repeat'"),
        ("--model.position=head", "model.position: expected one of 'attention', 'window'"),
    ],
)
def test_errors_of_the_command_line(argument, sentence, capsys) -> None:
    arguments = overlay_arguments("vision", [argument], data="digits", backbone="deit_tiny")
    with pytest.raises(SystemExit) as end:
        run_app(APP, ["fit", *arguments])
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err
