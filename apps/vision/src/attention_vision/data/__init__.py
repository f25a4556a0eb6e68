"""Image data sets, their splits and transforms."""

from attention_vision.data.augment import Augment
from attention_vision.data.base import ImageInfo, VisionData
from attention_vision.data.cifar import CIFAR
from attention_vision.data.digits import Digits
from attention_vision.data.image_folders import ImageFolder, ImageFolders

__all__ = [
    "CIFAR",
    "Augment",
    "Digits",
    "ImageFolder",
    "ImageFolders",
    "ImageInfo",
    "VisionData",
]
