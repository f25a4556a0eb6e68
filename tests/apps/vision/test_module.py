"""The vision app: every config parses, every method trains on every family, a run ends whole."""

import inspect
import json
import pydoc
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import timm
import torch
import yaml
from attention_core import GFSA, Plain
from attention_vision.__main__ import APP
from attention_vision.models import ClassToken, build_model, list_blocks
from attention_vision.module import VisionClassifier
from experiment_kit.cli import AppCLI, main
from experiment_kit.errors import UserError
from experiment_kit.launch import compose
from experiment_kit.tables import load
from torch import nn

from tests.apps.tiny import only_run

CONFIGS = Path("apps/vision/configs")
METHODS, DATA, BACKBONES, RECIPES, PROFILES = (
    compose.names("vision", kind) for kind in ("method", "data", "backbone", "recipe", "profile")
)
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


@cache
def cli() -> AppCLI:
    chosen = {"data": "digits", "backbone": "deit_tiny", "method": "plain"}
    return AppCLI(APP, ["fit", *compose.arguments("vision", **chosen)], plan=True)


def parse(*extra: str, **chosen: str):
    chosen = {"data": "digits", "backbone": "deit_tiny", "method": "plain"} | chosen
    return cli().parser.parse_args(["fit", *compose.arguments("vision", extra, **chosen)])


def narrow(backbone: str = "deit_tiny", method: str = "plain") -> tuple[str, ...]:
    small = (
        f"--model.model_kwargs={json.dumps(FAMILIES[backbone])}",
        "--data.init_args.image_size=32",
        "--data.init_args.batch_size=4",
    )
    late = ("--model.class_token.after=1",) if method == "late_class_token" else ()
    return (*small, *late)


@pytest.mark.parametrize(("data", "method"), list(product(DATA, METHODS)))
def test_every_method_parses_on_every_data_set(data: str, method: str) -> None:
    run = parse(data=data, method=method, profile="small").fit.run
    assert (run.data, run.method, run.profile) == (data, method, "small")


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_parses_on_every_backbone(backbone: str, recipe: str) -> None:
    fit = parse(backbone=backbone, recipe=recipe, data="imagenet_1k", profile="smoke").fit
    assert fit.run.backbone == backbone
    assert fit.model.mix.smoothing == 0.1


@pytest.mark.parametrize("method", METHODS)
def test_a_method_spells_out_all_arguments_of_its_slot(method: str) -> None:
    """A later class_path would keep what an earlier class had under the same names."""
    model = yaml.safe_load((CONFIGS / f"method/{method}.yaml").read_text())["model"]
    (slot,) = set(model) - {"layers", "position"}
    kind = ClassToken if slot == "class_token" else pydoc.locate(model[slot]["class_path"])
    given = model[slot] if slot == "class_token" else model[slot].get("init_args", {})
    accepted = set(inspect.signature(kind).parameters)
    assert set(given) == accepted - {"dim", "num_heads", "num_classes", "eps"}


def test_recipes_name_the_same_settings() -> None:
    """What one recipe sets and another leaves would be kept where both are given."""

    def names(value, path=""):
        if not isinstance(value, dict):
            return {path}
        return {n for key, part in value.items() for n in names(part, f"{path}.{key}")}

    found = {r: names(yaml.safe_load((CONFIGS / f"recipe/{r}.yaml").read_text())) for r in RECIPES}
    own = {".trainer.precision", ".trainer.gradient_clip_val", ".model.checkpoint"}
    own |= {".model.schedule.init_args.whole", ".data.init_args.augment.crop_pct"}
    assert len({frozenset(one - own) for one in found.values()}) == 1


@pytest.mark.parametrize(("backbone", "method"), list(product(FAMILIES, METHODS)))
def test_every_method_trains_on_every_family(backbone: str, method: str) -> None:
    config = parse(*narrow(backbone, method), backbone=backbone, method=method)
    if sentence := NO_PLACE.get((backbone, method)):
        with pytest.raises((ValueError, UserError), match=sentence):
            steps(cli().parser.instantiate_classes(config).fit.model)
        return
    first, *others = steps(cli().parser.instantiate_classes(config).fit.model)
    assert min(others) < first


def steps(module: VisionClassifier, count: int = 4) -> list[float]:
    """Losses of a few steps on one batch."""
    images, labels = torch.randn(4, 3, 32, 32), torch.arange(4)
    optimizer, losses = torch.optim.Adam(module.parameters(), lr=1e-2), []
    for _ in range(count):
        loss = module.training_loss(module.model, images.clone(), labels, module.mix, epoch=0)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def test_every_method_differs_from_plain_or_says_why() -> None:
    """Methods that start as plain do so by an identity; the others are seen at once."""
    torch.manual_seed(0)
    images = torch.randn(2, 3, 32, 32)
    outputs = {}
    for method in METHODS:
        config = parse(*narrow(method=method), method=method)
        torch.manual_seed(1)
        outputs[method] = cli().parser.instantiate_classes(config).fit.model.eval().model(images)
    same = {m for m in METHODS if torch.allclose(outputs[m], outputs["plain"], atol=1e-5)}
    training = {"hat", "diversepatch"}
    assert same == {"plain", "gfsa", "gfsa_even", "attnscale", "featscale", *training}


@pytest.mark.parametrize(
    ("backbone", "method", "extra"),
    [
        ("deit_small", "gfsa", 72),
        ("deit_small", "gfsa_even", 36),
        ("deit_small_24", "attnscale", 144),
        ("cait_s24", "gfsa", 192),
        ("swin_small", "attnscale", 282),
        ("deit_small", "featscale", 9_216),
        ("deit_small_24", "featscale", 18_432),
        ("swin_small", "featscale", 18_048),
        ("deit_small", "contranorm", 0),
        ("deit_small", "centered", 0),
        ("deit_small", "layerscale", 2 * 12 * 384),
        ("deit_small", "reattention", 12 * (6 * 6 + 6 + 2 * 6)),
        ("vit_tiny", "sharpening", -440_064),
        ("vit_tiny_48", "smoothing", -4 * 440_064),
        ("deit_small", "hat", 0),
        ("deit_small", "late_class_token", 0),
    ],
)
def test_a_method_adds_the_parameters_of_the_sheet(backbone: str, method: str, extra: int) -> None:
    def count(method: str) -> int:
        data = "cifar100" if backbone.startswith("vit") else "imagenet_1k"
        config = parse(backbone=backbone, method=method, data=data)
        with torch.device("meta"):
            module = cli().parser.instantiate_classes(config).fit.model
        return sum(p.numel() for p in module.model.parameters() if p.requires_grad)

    assert count(method) - count("plain") == extra


def test_tuned_agf_is_the_papers_table_12() -> None:
    tuned = yaml.safe_load((CONFIGS / "method/agf.per_dataset.yaml").read_text())
    for row in load("agf-table-12").rows:
        name = row.about["dataset"]
        mine, layers = tuned["model.kernel.init_args"][name], tuned["model"][name]["layers"]
        assert layers == f"-{row.values['L']}:"
        for key in ("K", "gamma", "a", "b"):
            assert mine[key] == row.values[key]


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
    main(APP, ["fit", *compose.arguments("vision", everything, **named)])
    return only_run(folder)


@pytest.mark.parametrize(
    ("backbone", "method"),
    [("deit_tiny", "gfsa"), ("cait_xxs24", "featscale"), ("swin_tiny", "attnscale")],
)
def test_a_run_is_watched_and_ends_with_a_result(backbone, method, tmp_path) -> None:
    # null is the data's own size, which the model is told
    run = fit(tmp_path, "--data.init_args.image_size=null", backbone=backbone, method=method)
    assert {"test/accuracy", "test/loss"} <= set(run.result()["metrics"])
    watched = json.loads((run.folder / "spectral.json").read_text())
    depth = sum(FAMILIES[backbone].get("depths", [FAMILIES[backbone].get("depth")]))
    assert len(watched["depth"]) == depth + 1
    assert len(watched["response"]) == depth
    name = "filter" if method == "attnscale" else "tokens" if method == "featscale" else "filter"
    assert any(f".{name}." in key for key in watched["coefficients"])


def test_raw_and_averaged_weights_are_both_scored(tmp_path) -> None:
    precision = "--trainer.precision=bf16-mixed"
    run = fit(tmp_path, precision, "--model.ema=0.5", recipe="deit_300")
    metrics = run.result()["metrics"]
    assert {"test/accuracy", "test/ema_accuracy"} <= set(metrics)
    assert run.result()["parameters"] == sum(
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


@pytest.mark.parametrize("key", ["model.checkpoint", "data.init_args.classes"])
def test_a_run_depends_on_what_its_files_hold(key: str, tmp_path) -> None:
    def planned(content: str) -> Path:
        (tmp_path / "x").write_text(content)
        data = "imagenet_100" if key.startswith("data") else "digits"
        chosen = {"data": data, "backbone": "deit_tiny", "method": "plain"}
        arguments = compose.arguments("vision", [f"--{key}={tmp_path / 'x'}"], **chosen)
        return AppCLI(APP, ["fit", *arguments], plan=True).run.folder

    assert planned("one two") == planned("one two") != planned("two one")


def test_a_second_way_to_accumulate_gradients_is_refused(tmp_path, capsys) -> None:
    both = ("--model.global_batch=8", "--trainer.accumulate_grad_batches=5")
    with pytest.raises(SystemExit):
        fit(tmp_path, *both)
    assert "accumulate_grad_batches is 2 by model.global_batch" in capsys.readouterr().err
