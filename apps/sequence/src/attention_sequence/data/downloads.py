"""Downloads of the data sets, by the names of their overlays."""

import re
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path

from experiment_kit.data.download import Download, Source

from attention_sequence.data.long_range import RELEASE
from attention_sequence.data.uea import UEA

_UEA = "https://timeseriesclassification.com"
_REVIEWS = [
    Download(
        "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
        "aclImdb",
        inside="aclImdb",
        # from tensorflow_datasets/url_checksums
        sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    )
]


def draw_dataset(name: str, root: Path) -> Path:
    """Draw ListOps or Pathfinder32, of the longest paths, into a folder, and return its path."""
    # here, since numba takes a second to import
    return import_module(f"attention_sequence.generate.{name}").write_dataset(root)


DOWNLOADS: Mapping[str, Source] = {
    **{  # "pems_sf" of PEMS-SF
        re.sub("(?<=[a-z])(?=[A-Z])|-", "_", name).lower(): [
            Download(f"{_UEA}/aeon-toolkit/{name}.zip", name, inside="")
        ]
        for name in (*UEA.SIZES, "BasicMotions")
    },
    "uea": [  # all of them
        Download(
            f"{_UEA}/ClassificationDownloads/Archives/Multivariate2018_ts.zip",
            "Multivariate_ts",
            inside="",
        )
    ],
    "listops": partial(draw_dataset, "listops"),
    "pathfinder": partial(draw_dataset, "pathfinder"),
    "text": _REVIEWS,
    "text_4k": _REVIEWS,
    "retrieval": [  # 7 GB with all tasks of the release, whose drawings are millions of files
        Download(RELEASE, "tsv_data", "lra_release/tsv_data")
    ],
    "image": [
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "cifar-10-binary",
            inside="",
            sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        )
    ],
}
