"""Download data sets into DATA_DIR: `python -m attention_vision.download cifar10 cifar100`."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

from experiment_kit.data.archive import extract
from experiment_kit.data.download import fetch
from experiment_kit.errors import UserError
from experiment_kit.sentences import told


class _Archive(NamedTuple):
    url: str
    folder: str


ARCHIVES = {
    "cifar10": _Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "cifar-10-binary"
    ),
    "cifar100": _Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "cifar-100-binary"
    ),
    "tiny_imagenet": _Archive("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "tiny-imagenet"),
}

IMAGENET = """\
ImageNet (ILSVRC 2012) is not downloaded: its terms ask for an account of your own.
1. Register at https://image-net.org/download, accept the terms, and download the images of
   ILSVRC 2012: "Training images (Task 1 & 2)", "Validation images (all tasks)" and the
   development kit, 145 GB in all.
2. Unpack the training archive, and each of its 1,000 archives, to
   DATA_DIR/imagenet/train/<class>/*.JPEG, where <class> is a name like n01440764.
3. Sort the 50,000 validation images into DATA_DIR/imagenet/val/<class>/*.JPEG:
   torchvision.datasets.ImageNet(root, split) does both from the three archives.
ImageNet-100 is read from the same folder: 100 of the classes, no other copy.
"""


def main() -> None:
    """Fetch archives, check them, unpack them; what is there already is left alone."""
    with told():
        names = sys.argv[1:]
        if names == ["imagenet"]:
            print(IMAGENET, end="")
            return
        if not names or set(names) - set(ARCHIVES):
            raise UserError(f"name some of {', '.join(ARCHIVES)}, or imagenet alone")
        root = os.environ.get("DATA_DIR")
        if not root:
            raise UserError("set DATA_DIR to the folder that the data is to go to")
        for archive in map(ARCHIVES.__getitem__, names):
            path = fetch(archive.url, Path(root) / archive.url.rpartition("/")[2])
            print(extract(path, Path(root) / archive.folder))


if __name__ == "__main__":
    main()
