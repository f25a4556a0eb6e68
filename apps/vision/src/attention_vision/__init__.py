"""Image classification with every attention mechanism."""

from experiment_kit.cli import AppSpec
from experiment_kit.data.download import Download

from attention_vision.data import VisionData
from attention_vision.module import VisionClassifier

_CIFAR = "https://www.cs.toronto.edu/~kriz"
_IMAGENET = """\
ImageNet (ILSVRC 2012) is not downloaded: its terms require an account of your own.
1. Register at https://image-net.org/download, accept the terms, and download the images of
   ILSVRC 2012: "Training images (Task 1 & 2)", "Validation images (all tasks)" and the
   development kit, 145 GB in all.
2. Unpack the training archive, and each of its 1,000 archives, to
   DATA_DIR/imagenet/train/<class>/*.JPEG, where <class> is a name like n01440764.
3. Sort the 50,000 validation images into DATA_DIR/imagenet/val/<class>/*.JPEG:
   torchvision.datasets.ImageNet(root, split) does both from the three archives.
ImageNet-100 is read from the same folder: 100 of the classes, no other copy.
"""

APP = AppSpec(
    name="vision",
    model=VisionClassifier,
    data=VisionData,
    monitor="val/accuracy",
    links={name: name for name in VisionData.LINKED_SIZES},
    hashed_files=("model.checkpoint", "data.init_args.classes"),
    downloads={
        "cifar10": [Download(f"{_CIFAR}/cifar-10-binary.tar.gz", "cifar-10-binary", inside="")],
        "cifar100": [Download(f"{_CIFAR}/cifar-100-binary.tar.gz", "cifar-100-binary", inside="")],
        "tiny_imagenet": [
            Download("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "tiny-imagenet", inside="")
        ],
        "imagenet": _IMAGENET,
    },
)
