"""Training losses against their equations, written out."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attention_vision.losses import HAT, CrossEntropy, DiversePatch, Mix
from attention_vision.models import build_model
from attention_vision.module import VisionClassifier
from experiment_kit.errors import UserError
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


def first_softmax(logits: list[float]) -> float:
    top = max(logits)
    return math.exp(logits[0] - top) / sum(math.exp(x - top) for x in logits)


def test_the_contrastive_loss_of_patches_equals_its_equation() -> None:
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
            terms.append(-math.log(first_softmax([float(c[b, i] @ m) for m in means])))
    assert_close(loss.item(), sum(terms) / len(terms))


def test_the_mixing_loss_is_that_of_the_mean_patch_of_a_region() -> None:
    loss = DiversePatch(5, CLASSES, dropout=0.0)
    patches, targets = torch.randn(3, 9, 5), torch.rand(3, CLASSES).softmax(-1)
    region = torch.tensor([1.0, 1, 0, 1, 1, 0, 0, 0, 0])
    mean = patches[:, region.bool()].sum(1) / (4 + 1e-4)
    logs = loss.head(mean).log_softmax(-1)
    expected = (targets * (targets.log() - logs)).sum(-1).mean()
    assert_close(loss._mixing_loss(patches, region, targets), expected)


def test_diverse_patches_train_their_own_head() -> None:
    model, loss = vit(), DiversePatch(12, CLASSES)
    loss(model, *batch(), Mix(smoothing=0.1), 0).backward()
    weights = [*model.parameters(), *loss.parameters()]
    assert all(w.grad is not None for w in weights)
    module = VisionClassifier(CLASSES, 32, model_kwargs=TINY, loss=DiversePatch)
    groups = module.build_param_groups()
    shapes = {tuple(w.shape) for group in groups for w in group["params"]}
    assert (CLASSES, 12) in shapes


@pytest.mark.parametrize("epoch", [0, 200])
def test_hat_has_the_gradient_of_the_sum_of_its_losses(epoch: int) -> None:
    """One graph at a time in ours, all of them together here."""
    model, (x, y) = vit().double().eval(), batch()
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
        backward = (here * (here / clean).log()).sum(-1).mean()
        divergence = (forward + backward) / 2
        loss = entropy if k == 0 else 3 * entropy / (K - 1)
        loss = loss + 0.01 * divergence / (1 if k == 0 else K - 1)
        total = total + loss
        (slope,) = torch.autograd.grad(loss, delta, retain_graph=True)
        delta = (delta.detach() + slope.sign() / 255).clamp(-2 / 255, 2 / 255)
    return total


def test_a_batch_of_an_odd_size_is_refused() -> None:
    with pytest.raises(UserError, match="need batches of an even size, got 3"):
        Mix(mixup=1.0)(*batch(3), CLASSES)
