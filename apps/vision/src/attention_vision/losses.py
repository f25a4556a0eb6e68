"""Training losses: cross-entropy of mixed images, DiversePatch's three, HAT, distillation.

Shapes: images (B, 3, S, S), labels (B,), targets (B, C), tokens (B, 1 + N, D), N = G^2 patches.
A loss is called with the model, a batch, the settings of mixup and CutMix, and the epoch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import timm
import torch
import torch.nn.functional as F
from attention_core.checks import check_nonnegative, check_numbers, check_probabilities, check_sizes
from experiment_kit.errors import UserError
from timm.data.mixup import Mixup, cutmix_bbox_and_lam, mixup_target
from torch import Tensor, nn

from attention_vision.models.checkpoint import load_checkpoint


@dataclass(frozen=True)
class Mix:
    """Mixup, CutMix and label smoothing of timm.

    Args:
        mixup: Alpha of mixup; 0 mixes no images.
        cutmix: Alpha of CutMix; 0 pastes no rectangles.
        prob: Probability that a batch is mixed.
        switch: Probability of CutMix where both alphas are above 0.
        smoothing: Share of the labels that goes to all classes.
    """

    mixup: float = 0.0
    cutmix: float = 0.0
    prob: float = 1.0
    switch: float = 0.5
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_nonnegative("model.mix", mixup=self.mixup, cutmix=self.cutmix)
        check_probabilities("model.mix", smoothing=self.smoothing)
        check_numbers("model.mix", 0, 1, prob=self.prob, switch=self.switch)

    def __call__(self, images: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """Mix the images of a batch, in place; labels become distributions.

        Images are mixed in pairs, so that the last one of an odd batch stays as it is.

        >>> Mix(smoothing=0.2)(torch.zeros(1, 3, 2, 2), torch.tensor([1]), 2)[1]
        tensor([[0.1000, 0.9000]])
        """
        if not (self.mixup or self.cutmix):
            return images, self.smooth_labels(labels, num_classes)
        if len(images) % 2:
            last = self.smooth_labels(labels[-1:], num_classes)
            paired = [] if len(images) == 1 else [self(images[:-1], labels[:-1], num_classes)[1]]
            return images, torch.cat([*paired, last])
        mixer = Mixup(
            self.mixup, self.cutmix, None, self.prob, self.switch,
            label_smoothing=self.smoothing, num_classes=num_classes,
        )  # fmt: skip
        return mixer(images, labels)

    def smooth_labels(self, labels: Tensor, num_classes: int) -> Tensor:
        """Turn labels of unmixed images into distributions."""
        return mixup_target(labels, num_classes, 1.0, self.smoothing)


class ImageLoss(nn.Module):
    """The base of all losses: called with the model, images, labels, a `Mix` and the epoch."""


class CrossEntropy(ImageLoss):
    r"""Cross-entropy with the mixed and smoothed labels.

    .. math:: -\sum_c t_c \log \mathrm{softmax}(f(x))_c
    """

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes

    def forward(
        self, model: nn.Module, images: Tensor, labels: Tensor, mix: Mix, epoch: int
    ) -> Tensor:
        """Compute the loss of one batch."""
        images, targets = mix(images, labels, self.num_classes)
        return F.cross_entropy(model(images), targets)


class DiversePatch(ImageLoss):
    r"""Diverse patches: each must be recognized by its own input, and by its own image.

    .. math::
        \mathrm{CE} + \lambda \Big(\mathrm{mixing} - \tfrac{1}{N} \sum_i \log \frac{e^{c_i p_i}}
        {e^{c_i p_i} + e^{c_i \bar p_{-i}} + e^{c_i \bar p_{U(i)}}}\Big)

    with c_i the embedding of patch i (no gradient), p_i its last output, and means over all other
    patches and over its neighbors in `window`^2 patches. CutMix pastes a rectangle of patches of
    the reversed batch; a head of its own classifies the mean patch of either image.
    As released: no pairwise cosine, no temperature. For a ViT with a class token.

    Args:
        weight: The factor of both terms.
        dropout: Dropout before the head of the mean patch.
        window: Side of the neighborhood in patches, odd.

    Source: https://arxiv.org/abs/2104.12753 and https://github.com/ChengyueGongR/PatchVisionTransformer
    """

    def __init__(
        self, dim: int, num_classes: int, weight: float = 1.0, dropout: float = 0.2,
        window: int = 7,
    ) -> None:  # fmt: skip
        super().__init__()
        check_nonnegative("model.loss", weight=weight)
        check_probabilities("model.loss", dropout=dropout)
        if window < 3 or window % 2 == 0:
            raise ValueError(f"model.loss.window must be odd and at least 3, got {window}")
        self.num_classes, self.weight, self.window = num_classes, weight, window
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(dim, num_classes))

    def forward(self, model: Any, images: Tensor, labels: Tensor, mix: Mix, epoch: int) -> Tensor:
        """Compute the loss of one batch, mixed with its own reverse."""
        own = self._draw_region(model.patch_embed.grid_size).to(images)  # (G, G)
        pixels = F.interpolate(own[None, None], images.shape[-2:])
        images = images * pixels + images.flip(0) * (1 - pixels)
        targets = mix.smooth_labels(labels, self.num_classes)
        with _record_outputs(model.patch_embed) as embedded, _record_outputs(model.norm) as last:
            logits = model(images)
        share, patches = own.mean(), last[0][:, 1:]
        if patches.shape != embedded[0].shape:
            kind = type(model).__name__
            raise UserError(f"DiversePatch needs patches and a class token: no {kind}")
        entropy = F.cross_entropy(logits, share * targets + (1 - share) * targets.flip(0))
        mixing = share * self._mixing_loss(patches, own.flatten(), targets)
        other = self._mixing_loss(patches, 1 - own.flatten(), targets.flip(0))
        mixing = mixing + (1 - share) * other
        contrastive = self._contrastive_loss(embedded[0].detach(), patches)
        return entropy + self.weight * (mixing + contrastive)

    def _draw_region(self, grid: tuple[int, int]) -> Tensor:
        """Draw the patches that stay the image's own: 1, and 0 in a rectangle."""
        lam = torch.rand(()).item()  # Beta(1, 1)
        (top, bottom, left, right), _ = cutmix_bbox_and_lam(grid, lam)
        own = torch.ones(grid)
        own[top:bottom, left:right] = 0
        return own

    def _mixing_loss(self, patches: Tensor, region: Tensor, targets: Tensor) -> Tensor:
        mean = torch.einsum("n,bnd->bd", region, patches) / (region.sum() + 1e-4)
        return F.kl_div(self.head(mean).log_softmax(-1), targets, reduction="batchmean")

    def _contrastive_loss(self, c: Tensor, p: Tensor) -> Tensor:
        B, N, D = p.shape
        side = round(N**0.5)
        others = (p.sum(1, keepdim=True) - p) / (N - 1)
        square = p.mT.reshape(B, D, side, side)
        near = F.avg_pool2d(square, self.window, 1, self.window // 2, divisor_override=1)
        around = (near.flatten(2).mT - p) / (self.window**2 - 1)
        logits = torch.stack([(c * other).sum(-1) for other in (p, others, around)], -1)
        return -logits.log_softmax(-1)[..., 0].mean()


class HardDistillation(ImageLoss):
    r"""DeiT's distillation: the class token learns the labels, the other token the teacher's.

    .. math:: \tfrac{1}{2} \mathrm{CE}(f(x), t) + \tfrac{1}{2} \mathrm{CE}(g(x), \arg\max h(x))

    with f and g the heads of both tokens, and h the teacher. Evaluation averages f and g.

    Args:
        teacher: Model of timm.
        checkpoint: File of the teacher's weights.

    Source: section 4 of https://arxiv.org/abs/2012.12877
    """

    def __init__(
        self, dim: int, num_classes: int, teacher: str = "regnety_160",
        checkpoint: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_classes = num_classes
        self._teacher: tuple[nn.Module, ...] = ()  # what is in it stays out of the state dict
        if checkpoint:
            network = timm.create_model(teacher, num_classes=num_classes)
            load_checkpoint(network, checkpoint, "model.loss.checkpoint")
            self._teacher = (network.requires_grad_(False).eval(),)

    def forward(self, model: Any, images: Tensor, labels: Tensor, mix: Mix, epoch: int) -> Tensor:
        """Compute the loss of one batch."""
        if not hasattr(model, "set_distilled_training"):
            kind = type(model).__name__
            raise UserError(f"distillation needs a model with a distillation token: no {kind}")
        if not self._teacher:
            raise UserError("model.loss.checkpoint: name the file with the teacher's weights")
        images, targets = mix(images, labels, self.num_classes)
        (teacher,) = self._teacher
        with torch.no_grad():
            taught = teacher.to(images.device)(images).argmax(-1)
        model.set_distilled_training(True)
        own, distilled = model(images)
        return (F.cross_entropy(own, targets) + F.cross_entropy(distilled, taught)) / 2


class HAT(ImageLoss):
    r"""Training on adversarial high frequencies: K gradients a step, each on perturbed images.

    .. math::
        \mathcal{L}_0 = \mathrm{CE} + \beta\,\mathrm{KL}, \quad
        \mathcal{L}_{k>0} = \frac{\alpha\,\mathrm{CE} + \beta\,\mathrm{KL}}{K - 1}, \quad
        \delta \leftarrow \mathrm{clip}_{\epsilon}(\delta + \eta\,\mathrm{sign}\,\nabla_\delta
        \mathcal{L}_k)

    with KL the mean of both divergences to the clean prediction. The gradients of all K losses are
    summed; the architecture is unchanged.

    Args:
        K: Gradients of a step.
        alpha: Weight of the cross-entropy of perturbed images.
        beta: Weight of the divergence.
        eta: Step of the perturbation.
        epsilon: Bound of the perturbation.
        until: Epoch from which on K is 1.

    Source: https://arxiv.org/abs/2204.00993 and https://github.com/jiawangbai/HAT
    """

    def __init__(
        self, dim: int, num_classes: int, K: int = 3, alpha: float = 3.0, beta: float = 0.01,
        eta: float = 1 / 255, epsilon: float = 2 / 255, until: int = 200,
    ) -> None:  # fmt: skip
        super().__init__()
        check_sizes("model.loss", K=K)
        check_nonnegative("model.loss", alpha=alpha, beta=beta, eta=eta, epsilon=epsilon)
        self.num_classes, self.K, self.until = num_classes, K, until
        self.alpha, self.beta, self.eta, self.epsilon = alpha, beta, eta, epsilon

    def forward(
        self, model: nn.Module, images: Tensor, labels: Tensor, mix: Mix, epoch: int
    ) -> Tensor:
        """Return the sum of the K losses, with the sum of their gradients as its gradient."""
        images, targets = mix(images, labels, self.num_classes)
        K = self.K if epoch < self.until else 1
        with torch.no_grad():
            clean = model(images).log_softmax(-1)
        weights = [w for w in model.parameters() if w.requires_grad]
        delta, total = torch.zeros_like(images), images.new_zeros(())
        gradients = [torch.zeros_like(w) for w in weights]
        for k in range(K):
            delta.requires_grad_()
            loss = self._step_loss(model(images + delta), targets, clean, k, K)
            slope, *grads = torch.autograd.grad(loss, [delta, *weights])
            # one graph at a time: the sum of the losses would hold all K graphs
            torch._foreach_add_(gradients, grads)
            total = total + loss.detach()
            delta = (delta.detach() + self.eta * slope.sign()).clamp(-self.epsilon, self.epsilon)
        products = [(w * g).sum() for w, g in zip(weights, gradients, strict=True)]
        surrogate = torch.stack(products).sum()
        return total + surrogate - surrogate.detach()

    def _step_loss(self, logits: Tensor, targets: Tensor, clean: Tensor, k: int, K: int) -> Tensor:
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
def _record_outputs(module: nn.Module) -> Iterator[list[Tensor]]:
    outputs: list[Tensor] = []
    handle = module.register_forward_hook(lambda *call: outputs.append(call[-1]))
    try:
        yield outputs
    finally:
        handle.remove()
