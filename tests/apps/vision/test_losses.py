"""What is minimised, against the literal equations; weights from files; what is refused."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attention_core import AGF
from attention_vision.__main__ import APP
from attention_vision.losses import HAT, CrossEntropy, DiversePatch, Mix
from attention_vision.models import ClassToken, build_model, load_checkpoint
from attention_vision.module import VisionClassifier
from experiment_kit.cli import main
from experiment_kit.errors import UserError
from experiment_kit.launch import compose
from torch.testing import assert_close

CLASSES = 7
TINY = {"depth": 2, "embed_dim": 12, "num_heads": 3, "patch_size": 8}


def vit(**options):
    return build_model("deit_tiny_patch16_224", CLASSES, 32, TINY | options)


def batch(size: int = 4):
    return torch.randn(size, 3, 32, 32), torch.randint(CLASSES, (size,))


def test_unmixed_cross_entropy_is_torchs_with_smoothing() -> None:
    model, (x, y) = vit(), batch(3)
    ours = CrossEntropy(12, CLASSES)(model, x, y, Mix(smoothing=0.1), 0)
    assert_close(ours, F.cross_entropy(model(x), y, label_smoothing=0.1))


@pytest.mark.parametrize("mix", [Mix(mixup=1.0), Mix(cutmix=1.0), Mix(0.8, 1.0, smoothing=0.1)])
def test_mixed_labels_are_distributions_of_two_classes_by_their_share(mix: Mix) -> None:
    np.random.seed(3)  # noqa: NPY002 -- timm's
    x, y = torch.zeros(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    x[:2] = 1.0
    mixed, targets = mix(x.clone(), y, CLASSES)
    assert_close(targets.sum(-1), torch.ones(4))
    share = mixed[0].mean()  # of the image's own pixels
    own, smooth = targets[0, 0], mix.smoothing / CLASSES
    assert_close(own, share * (1 - mix.smoothing) + smooth, atol=1e-5, rtol=0)


def softmax0(logits: list[float]) -> float:
    top = max(logits)
    return math.exp(logits[0] - top) / sum(math.exp(x - top) for x in logits)


def test_the_contrast_of_patches_is_the_literal_one() -> None:
    c, p = torch.randn(2, 9, 5).double(), torch.randn(2, 9, 5).double()
    loss = DiversePatch(5, CLASSES, window=3)._contrastive_loss(c, p)
    terms = []
    for b in range(2):
        for i in range(9):
            others = [p[b, j] for j in range(9) if j != i]
            near = [
                p[b, j]
                for j in range(9)
                if j != i and abs(j // 3 - i // 3) <= 1 and abs(j % 3 - i % 3) <= 1
            ]
            means = [p[b, i], sum(others) / 8, sum(near) / 8]  # zero-padded: always by 3 x 3 - 1
            terms.append(-math.log(softmax0([float(c[b, i] @ m) for m in means])))
    assert_close(loss.item(), sum(terms) / len(terms))


def test_the_mixing_loss_is_that_of_the_mean_patch_of_a_region() -> None:
    objective = DiversePatch(5, CLASSES, dropout=0.0)
    patches, targets = torch.randn(3, 9, 5), torch.rand(3, CLASSES).softmax(-1)
    region = torch.tensor([1.0, 1, 0, 1, 1, 0, 0, 0, 0])
    mean = patches[:, region.bool()].sum(1) / (4 + 1e-4)
    logs = objective.head(mean).log_softmax(-1)
    expected = (targets * (targets.log() - logs)).sum(-1).mean()
    assert_close(objective._mixing_loss(patches, region, targets), expected)


def test_diverse_patches_train_their_own_head() -> None:
    model, objective = vit(), DiversePatch(12, CLASSES)
    loss = objective(model, *batch(), Mix(smoothing=0.1), 0)
    loss.backward()
    weights = [*model.parameters(), *objective.parameters()]
    assert all(w.grad is not None for w in weights)
    owned = {w for group in optimised(DiversePatch) for w in group["params"]}
    assert any(w.shape == (CLASSES, 12) for w in owned)


def optimised(objective):
    module = VisionClassifier(CLASSES, 32, model_kwargs=TINY, loss=objective)
    module.trainer = type(
        "T",
        (),
        {"estimated_stepping_batches": 4, "num_training_batches": 4, "accumulate_grad_batches": 1},
    )()
    module._trainer = module.trainer
    return module.configure_optimizers()[0][0].param_groups


@pytest.mark.parametrize("epoch", [0, 200])
def test_hat_has_the_gradient_of_the_sum_of_its_losses(epoch: int) -> None:
    """One graph at a time in ours, all of them together here."""
    model, (x, y) = vit().double().eval(), batch()
    x, hat = x.double(), HAT(12, CLASSES, K=3)
    loss = hat(model, x, y, Mix(), epoch)
    loss.backward()
    ours = {name: w.grad for name, w in model.named_parameters()}
    model.zero_grad()
    expected = literal_hat(model, x, F.one_hot(y, CLASSES).double(), 3 if epoch < 200 else 1)
    assert_close(loss, expected)
    expected.backward()
    for name, w in model.named_parameters():
        assert_close(ours[name], w.grad, msg=name)


def literal_hat(model, x, targets, K):
    clean, delta, total = model(x).softmax(-1).detach(), torch.zeros_like(x), 0.0
    for k in range(K):
        delta.requires_grad_()
        here = model(x + delta).softmax(-1)
        entropy = -(targets * here.log()).sum(-1).mean()
        forward = (clean * (clean / here).log()).sum(-1).mean()
        backward = (here * (here / clean).log()).sum(-1).mean()
        divergence = (forward + backward) / 2
        loss = entropy if k == 0 else 3 * entropy / (K - 1)
        loss = loss + 0.01 * divergence / (1 if k == 0 else K - 1)
        total = total + loss
        (slope,) = torch.autograd.grad(loss, delta, retain_graph=True)
        delta = (delta.detach() + slope.sign() / 255).clamp(-2 / 255, 2 / 255)
    return total


def test_a_stock_checkpoint_and_that_of_a_run_are_read(tmp_path) -> None:
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
def test_bad_arguments_are_told_in_a_sentence(options, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        VisionClassifier(CLASSES, 32, **options)


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("--model.mix={mixup:0.8}", "model.mix: expected options as a mapping, or null, got {mix"),
        ('--model.class_token={"after": "x"}', "model.class_token.after: expected int or null"),
        ('--data.init_args.augment={"repeat": 3}', "there is no option 'augment.repeat'"),
        ("--model.position=head", "model.position: expected one of 'attention', 'window'"),
    ],
)
def test_bad_options_are_told_in_a_sentence(argument, sentence, capsys) -> None:
    arguments = compose.arguments("vision", [argument], data="digits", backbone="deit_tiny")
    with pytest.raises(SystemExit) as end:
        main(APP, ["fit", *arguments])
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_batch_of_an_odd_size_is_told() -> None:
    with pytest.raises(UserError, match="need batches of an even size, got 3"):
        Mix(mixup=1.0)(*batch(3), CLASSES)
