"""Training losses against their equations, written out."""

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from attention_vision.losses import HAT, CrossEntropy, DiversePatch, HardDistillation, Mix
from attention_vision.models.timm_models import build_model
from attention_vision.module import VisionClassifier
from experiment_kit.errors import UserError
from torch.testing import assert_close

from tests.apps.vision.test_models import TINY, build_vit

CLASSES = 7


def draw_batch(size: int = 4):
    return torch.randn(size, 3, 32, 32), torch.randint(CLASSES, (size,))


def test_unmixed_cross_entropy_is_torchs_with_smoothing() -> None:
    model, (x, y) = build_vit().train(), draw_batch(3)
    ours = CrossEntropy(12, CLASSES)(model, x, y, Mix(smoothing=0.1), 0)
    assert_close(ours, F.cross_entropy(model(x), y, label_smoothing=0.1))


@pytest.mark.parametrize("mix", [Mix(mixup=1.0), Mix(cutmix=1.0), Mix(0.8, 1.0, smoothing=0.1)])
def test_mixed_labels_are_distributions_of_two_classes_by_their_share(mix: Mix) -> None:
    np.random.seed(3)  # noqa: NPY002 -- timm's
    x, y = torch.zeros(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    x[:2] = 1.0
    mixed, targets = mix(x.clone(), y, CLASSES)
    assert_close(targets.sum(-1), torch.ones(4))
    share = mixed[0].mean()  # the image's own pixels
    own, smooth = targets[0, 0], mix.smoothing / CLASSES
    assert_close(own, share * (1 - mix.smoothing) + smooth, atol=1e-5, rtol=0)


def test_the_contrastive_loss_of_patches_equals_its_equation() -> None:
    c, p = torch.randn(2, 9, 5).double(), torch.randn(2, 9, 5).double()
    loss = DiversePatch(5, CLASSES, window=3)._contrastive_loss(c, p)
    terms = []
    for b in range(2):
        for i in range(9):
            rest = [j for j in range(9) if j != i]
            others = [p[b, j] for j in rest]
            near = [p[b, j] for j in rest if max(abs(j // 3 - i // 3), abs(j % 3 - i % 3)) == 1]
            means = [p[b, i], sum(others) / 8, sum(near) / 8]  # zero-padded: always by 3 x 3 - 1
            terms.append(-torch.stack([c[b, i] @ m for m in means]).log_softmax(0)[0])
    assert_close(loss, sum(terms) / len(terms))


def test_the_mixing_loss_is_that_of_the_mean_patch_of_a_region_and_trains_its_head() -> None:
    loss = DiversePatch(5, CLASSES, dropout=0.0)
    patches, targets = torch.randn(3, 9, 5), torch.rand(3, CLASSES).softmax(-1)
    region = torch.tensor([1.0, 1, 0, 1, 1, 0, 0, 0, 0])
    mean = patches[:, region.bool()].sum(1) / (4 + 1e-4)
    expected = (targets * (targets.log() - loss.head(mean).log_softmax(-1))).sum(-1).mean()
    assert_close(loss._mixing_loss(patches, region, targets), expected)
    module = VisionClassifier(CLASSES, 32, model_kwargs=TINY, loss=DiversePatch)
    shapes = {tuple(w.shape) for group in module.build_param_groups() for w in group["params"]}
    assert (CLASSES, 12) in shapes


@pytest.mark.parametrize("epoch", [0, 200])
def test_hat_has_the_gradient_of_the_sum_of_its_losses(epoch: int) -> None:
    """One graph at a time in ours, all of them together here."""
    model, (x, y) = build_vit().double(), draw_batch()
    x, hat = x.double(), HAT(12, CLASSES, K=3)
    loss = hat(model, x, y, Mix(), epoch)
    loss.backward()
    ours = {name: w.grad for name, w in model.named_parameters()}
    model.zero_grad()
    expected = reference_hat(model, x, F.one_hot(y, CLASSES).double(), 3 if epoch < 200 else 1)
    assert_close(loss, expected)
    expected.backward()
    for name, w in model.named_parameters():
        assert_close(ours[name], w.grad, msg=name)


def reference_hat(model, x, targets, K):
    clean, delta, total = model(x).softmax(-1).detach(), torch.zeros_like(x), 0.0
    for k in range(K):
        delta.requires_grad_()
        here = model(x + delta).softmax(-1)
        entropy = -(targets * here.log()).sum(-1).mean()
        forward = (clean * (clean / here).log()).sum(-1).mean()
        divergence = (forward + (here * (here / clean).log()).sum(-1).mean()) / 2
        loss = entropy if k == 0 else 3 * entropy / (K - 1)
        loss = loss + 0.01 * divergence / (1 if k == 0 else K - 1)
        total = total + loss
        (slope,) = torch.autograd.grad(loss, delta, retain_graph=True)
        delta = (delta.detach() + slope.sign() / 255).clamp(-2 / 255, 2 / 255)
    return total


@pytest.mark.parametrize("mix", [Mix(mixup=1.0, smoothing=0.1), Mix(cutmix=1.0, smoothing=0.1)])
def test_the_last_image_of_an_odd_batch_stays_as_it_is(mix: Mix) -> None:
    images = torch.arange(5.0).view(5, 1, 1, 1).expand(5, 3, 8, 8).clone()
    mixed, targets = mix(images.clone(), torch.arange(5), 5)
    assert torch.equal(mixed[-1], images[-1])
    assert_close(targets[-1], Mix(smoothing=0.1).smooth_labels(torch.tensor([4]), 5)[0])
    assert (mixed[:4] != images[:4]).any()
    assert_close(targets.sum(1), torch.ones(5))
    alone, target = mix(images[:1].clone(), torch.tensor([2]), 5)
    assert torch.equal(alone, images[:1])
    assert target.argmax() == 2


def test_distillation_learns_labels_and_the_choices_of_the_teacher(tmp_path) -> None:
    teacher = timm.create_model("regnety_002", num_classes=CLASSES)
    torch.save(teacher.state_dict(), tmp_path / "teacher.pth")
    loss = HardDistillation(12, CLASSES, "regnety_002", str(tmp_path / "teacher.pth"))
    assert not loss.state_dict()
    model = build_model("deit_tiny_distilled_patch16_224", CLASSES, 32, TINY).train()
    (x, y), mix = draw_batch(), Mix(smoothing=0.1)
    found = loss(model, x, y, mix, 0)
    own, distilled = model(x)
    taught = teacher.eval()(x).argmax(-1)
    expected = F.cross_entropy(own, y, label_smoothing=0.1) + F.cross_entropy(distilled, taught)
    assert_close(found, expected / 2)
    assert model.eval()(x).shape == (4, CLASSES)
    with pytest.raises(UserError, match="name the file with the teacher's weights"):
        HardDistillation(12, CLASSES)(model, x, y, mix, 0)
    for name, sentence in (("none", "does not exist"), ("teacher", "is of another model: head.fc")):
        with pytest.raises(UserError, match=rf"model.loss.checkpoint \S+ {sentence}"):
            HardDistillation(12, 5, "regnety_002", str(tmp_path / f"{name}.pth"))
