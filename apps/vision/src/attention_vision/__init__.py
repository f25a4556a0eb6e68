"""Image classification with every attention mechanism."""

from experiment_kit.app import AppSpec
from experiment_kit.data.download import Download

from attention_vision.data import VisionData
from attention_vision.models.checkpoint import load_network
from attention_vision.module import VisionClassifier

__version__ = "0.1.0"

_CIFAR = "https://www.cs.toronto.edu/~kriz"
# sha256 as in tensorflow_datasets/url_checksums
_CIFAR_ARCHIVES = {
    "cifar10": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    "cifar100": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
}
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
    score_last=True,
    links={name: name for name in VisionData.LINKED_SIZES},
    load_network=load_network,
    hashed_files=("model.checkpoint", "model.loss.init_args.checkpoint", "data.init_args.classes"),
    downloads={
        **{
            name: [Download(f"{_CIFAR}/{folder}.tar.gz", folder, "", sha256)]
            for name, sha256 in _CIFAR_ARCHIVES.items()
            for folder in (name.replace("cifar", "cifar-") + "-binary",)
        },
        "tiny_imagenet": [
            Download(
                "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "tiny-imagenet",
                inside="",
                sha256="6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
            )
        ],
        **dict.fromkeys(("imagenet", "imagenet_1k", "imagenet_100"), _IMAGENET),
    },
)
