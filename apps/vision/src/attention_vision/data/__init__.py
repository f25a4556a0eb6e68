"""Images and labels: what is read, how it is split, and what is drawn at random for training."""

from attention_vision.data.augment import Augment
from attention_vision.data.base import Facts, VisionData
from attention_vision.data.cifar import CIFAR
from attention_vision.data.digits import Digits
from attention_vision.data.folders import ImageFolders

__all__ = ["CIFAR", "Augment", "Digits", "Facts", "ImageFolders", "VisionData"]
