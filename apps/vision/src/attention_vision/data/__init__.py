"""Image data sets, their splits and transforms."""

from attention_vision.data.augment import Augment as Augment
from attention_vision.data.base import ImageInfo as ImageInfo
from attention_vision.data.base import VisionData as VisionData
from attention_vision.data.cifar import CIFAR as CIFAR
from attention_vision.data.digits import Digits as Digits
from attention_vision.data.image_folders import ImageFolder as ImageFolder
from attention_vision.data.image_folders import ImageFolders as ImageFolders
