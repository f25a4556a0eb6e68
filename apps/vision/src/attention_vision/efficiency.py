"""`python -m attention_vision.efficiency`: what the model of a config costs, without images."""

import torch
from experiment_kit.efficiency import Parts, main

from attention_vision.__main__ import APP
from attention_vision.data import VisionData
from attention_vision.module import VisionClassifier


def parts(module: VisionClassifier, data: VisionData) -> Parts:
    """The timm model of a classifier, and images (B, 3, S, S) of the size that its data has."""
    size = data.image_size
    return module.model, lambda batch: (torch.randn(batch, 3, size, size),)


if __name__ == "__main__":
    main(APP, parts)
