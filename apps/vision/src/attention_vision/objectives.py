"""What is minimised: cross-entropy of mixed images, DiversePatch's three losses, HAT's training.

Shapes: images (B, 3, S, S), labels (B,), targets (B, C), tokens (B, 1 + N, D), N = G^2 patches.
An objective is called with the model, a batch, the recipe's mixing and the epoch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from experiment_kit.errors import UserError
from timm.data.mixup import Mixup, cutmix_bbox_and_lam, mixup_target
from torch import Tensor, nn


@dataclass(frozen=True)
class Mix:
    """How images and labels of a batch are mixed, by timm; nothing is where both alphas are 0."""

    mixup: float = 0.0
    cutmix: float = 0.0
    prob: float = 1.0
    switch: float = 0.5
    smoothing: float = 0.0

    def __call__(self, images: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Mix a batch of an even number of images, in place; labels become distributions.

        >>> Mix(smoothing=0.2)(torch.zeros(1, 3, 2, 2), torch.tensor([1]), 2)[1]
        tensor([[0.1000, 0.9000]])
        """
        if not (self.mixup or self.cutmix):
            return images, self.soft(labels, classes)
        if len(images) % 2:
            raise UserError(f"mixup and CutMix need batches of an even size, got {len(images)}")
        mixed = Mixup(
            self.mixup, self.cutmix, None, self.prob, self.switch,
            label_smoothing=self.smoothing, num_classes=classes,
        )  # fmt: skip
        return mixed(images, labels)

    def soft(self, labels: Tensor, classes: int) -> Tensor:
        """Distributions of unmixed labels."""
        return mixup_target(labels, classes, 1.0, self.smoothing)


class CrossEntropy(nn.Module):
    r"""Cross-entropy with the mixed and smoothed labels.

    .. math:: -\sum_c t_c \log \mathrm{softmax}(f(x))_c
    """

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.classes = num_classes

    def forward(
        self, model: nn.Module, images: Tensor, labels: Tensor, mix: Mix, epoch: int
    ) -> Tensor:
        """The loss of one batch."""
        images, targets = mix(images, labels, self.classes)
        return F.cross_entropy(model(images), targets)


class DiversePatch(nn.Module):
    r"""Patches kept apart by telling their own input from the others', and their own image.

    .. math::
        \mathrm{CE} + \lambda \Big(\mathrm{mixing} - \tfrac{1}{N} \sum_i \log \frac{e^{c_i p_i}}
        {e^{c_i p_i} + e^{c_i \bar p_{-i}} + e^{c_i \bar p_{U(i)}}}\Big)

    with c_i the embedding of patch i (no gradient), p_i its last output, and means over the other
    patches and over its neighbours in `window`^2 patches. Each batch is a CutMix of itself in a
    rectangle of patches; the mean of either image's patches is classified by a head of its own.
    As released: no pairwise cosine, no temperature. For a ViT with a class token.

    Source: https://arxiv.org/abs/2104.12753 and https://github.com/ChengyueGongR/PatchVisionTransformer
    """

    def __init__(
        self, width: int, num_classes: int, weight: float = 1.0, dropout: float = 0.2,
        window: int = 7,
    ) -> None:  # fmt: skip
        super().__init__()
        self.classes, self.weight, self.window = num_classes, weight, window
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(width, num_classes))

    def forward(self, model: Any, images: Tensor, labels: Tensor, mix: Mix, epoch: int) -> Tensor:
        """The loss of one batch, whose second images are the batch in reverse."""
        grid = model.patch_embed.grid_size
        own = self._rectangle(grid).to(images)  # 1 where a patch is of the batch's own image
        pixels = F.interpolate(own[None, None], images.shape[-2:])
        images = images * pixels + images.flip(0) * (1 - pixels)
        targets = mix.soft(labels, self.classes)
        with _noted(model.patch_embed) as embedded, _noted(model.norm) as last:
            logits = model(images)
        share, patches = own.mean(), last[0][:, 1:]
        if patches.shape != embedded[0].shape:
            raise UserError(
                f"DiversePatch needs patches and a class token: no {type(model).__name__}"
            )
        mixed = F.cross_entropy(logits, share * targets + (1 - share) * targets.flip(0))
        patchwise = share * self._mixing(patches, own.flatten(), targets)
        patchwise = patchwise + (1 - share) * self._mixing(
            patches, 1 - own.flatten(), targets.flip(0)
        )
        return mixed + self.weight * (patchwise + self._contrast(embedded[0].detach(), patches))

    def _rectangle(self, grid: tuple[int, int]) -> Tensor:
        (top, bottom, left, right), _ = cutmix_bbox_and_lam(
            grid, torch.rand(()).item()
        )  # Beta(1, 1)
        own = torch.ones(grid)
        own[top:bottom, left:right] = 0
        return own

    def _mixing(self, patches: Tensor, region: Tensor, targets: Tensor) -> Tensor:
        mean = torch.einsum("n,bnd->bd", region, patches) / (region.sum() + 1e-4)
        return F.kl_div(self.head(mean).log_softmax(-1), targets, reduction="batchmean")

    def _contrast(self, c: Tensor, p: Tensor) -> Tensor:
        B, N, D = p.shape
        side = round(N**0.5)
        others = (p.sum(1, keepdim=True) - p) / (N - 1)
        square = p.mT.reshape(B, D, side, side)
        near = F.avg_pool2d(square, self.window, 1, self.window // 2, divisor_override=1)
        around = (near.flatten(2).mT - p) / (self.window**2 - 1)
        logits = torch.stack([(c * other).sum(-1) for other in (p, others, around)], -1)
        return -logits.log_softmax(-1)[..., 0].mean()


class HAT(nn.Module):
    r"""Training on adversarial high frequencies: K gradients a step, the images perturbed between.

    .. math::
        \mathcal{L}_0 = \mathrm{CE} + \beta\,\mathrm{KL}, \quad
        \mathcal{L}_{k>0} = \frac{\alpha\,\mathrm{CE} + \beta\,\mathrm{KL}}{K - 1}, \quad
        \delta \leftarrow \mathrm{clip}_{\epsilon}(\delta + \eta\,\mathrm{sign}\,\nabla_\delta
        \mathcal{L}_k)

    with KL the mean of both divergences to the clean prediction. K = 1 from epoch `until` on.
    The gradients of all K losses are summed; the architecture is untouched.

    Source: https://arxiv.org/abs/2204.00993 and https://github.com/jiawangbai/HAT
    """

    def __init__(
        self, width: int, num_classes: int, K: int = 3, alpha: float = 3.0, beta: float = 0.01,
        eta: float = 1 / 255, epsilon: float = 2 / 255, until: int = 200,
    ) -> None:  # fmt: skip
        super().__init__()
        if K < 1:
            raise ValueError(f"HAT's K must be at least 1, got {K}")
        self.classes, self.K, self.until = num_classes, K, until
        self.alpha, self.beta, self.eta, self.epsilon = alpha, beta, eta, epsilon

    def forward(
        self, model: nn.Module, images: Tensor, labels: Tensor, mix: Mix, epoch: int
    ) -> Tensor:
        """A scalar whose value is the sum of the K losses and whose gradient is theirs."""
        images, targets = mix(images, labels, self.classes)
        K = self.K if epoch < self.until else 1
        with torch.no_grad():
            clean = model(images).log_softmax(-1)
        weights = [w for w in model.parameters() if w.requires_grad]
        delta, total = torch.zeros_like(images), images.new_zeros(())
        summed = [torch.zeros_like(w) for w in weights]
        for k in range(K):
            delta.requires_grad_()
            loss = self._loss(model(images + delta), targets, clean, k, K)
            slope, *grads = torch.autograd.grad(loss, [delta, *weights])
            # one graph at a time: the sum of the losses would hold all of them
            torch._foreach_add_(summed, grads)
            total = total + loss.detach()
            delta = (delta.detach() + self.eta * slope.sign()).clamp(-self.epsilon, self.epsilon)
        products = [(w * g).sum() for w, g in zip(weights, summed, strict=True)]
        surrogate = torch.stack(products).sum()
        return total + surrogate - surrogate.detach()

    def _loss(self, logits: Tensor, targets: Tensor, clean: Tensor, k: int, K: int) -> Tensor:
        here = logits.log_softmax(-1)
        both = [
            F.kl_div(a, b, reduction="batchmean", log_target=True)
            for a, b in ((here, clean), (clean, here))
        ]
        entropy, divergence = F.cross_entropy(logits, targets), sum(both) / 2
        if k == 0:
            return entropy + self.beta * divergence
        return (self.alpha * entropy + self.beta * divergence) / (K - 1)


@contextmanager
def _noted(module: nn.Module) -> Iterator[list[Tensor]]:
    outputs: list[Tensor] = []
    handle = module.register_forward_hook(lambda *call: outputs.append(call[-1]))
    try:
        yield outputs
    finally:
        handle.remove()
