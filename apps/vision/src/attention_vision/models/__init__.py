"""Models of timm, and checkpoints for them."""

from attention_vision.models.checkpoint import load_checkpoint
from attention_vision.models.late_class_token import ClassToken
from attention_vision.models.timm_models import (
    build_model,
    is_convolutional,
    list_blocks,
)

__all__ = [
    "ClassToken",
    "build_model",
    "is_convolutional",
    "list_blocks",
    "load_checkpoint",
]
