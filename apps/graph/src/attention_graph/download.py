"""Download data sets into DATA_DIR: `python -m attention_graph.download zinc pcqm4mv2 esol`."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

from experiment_kit.data.archive import extract
from experiment_kit.data.download import fetch
from experiment_kit.errors import UserError
from experiment_kit.sentences import told

_LSC = "https://dgl-data.s3-accelerate.amazonaws.com/dataset/OGB-LSC"
_DEEPCHEM = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets"
_BENCHMARK = (
    "https://raw.githubusercontent.com/graphdeeplearning/benchmarking-gnns/master/data/molecules"
)


class _Files(NamedTuple):
    """Where files come from, and the folder they are in; an archive brings that folder along."""

    folder: str
    urls: tuple[str, ...] = ()
    archive: str = ""


# The pickles are those of benchmarking-gnns, as torch-geometric has them
SOURCES = {
    "zinc": _Files(
        "ZINC/molecules",
        tuple(f"{_BENCHMARK}/{part}.index" for part in ("train", "val", "test")),
        "https://www.dropbox.com/s/feo9qle74kg48gy/molecules.zip?dl=1",
    ),
    "pcqm4m": _Files("pcqm4m/pcqm4m_kddcup2021", archive=f"{_LSC}/pcqm4m_kddcup2021.zip"),
    "pcqm4mv2": _Files("pcqm4mv2/pcqm4m-v2", archive=f"{_LSC}/pcqm4m-v2.zip"),
    "esol": _Files("moleculenet", (f"{_DEEPCHEM}/delaney-processed.csv",)),
    "freesolv": _Files("moleculenet", (f"{_DEEPCHEM}/SAMPL.csv",)),
    "lipophilicity": _Files("moleculenet", (f"{_DEEPCHEM}/Lipophilicity.csv",)),
}


def main() -> None:
    """Fetch files, check them, unpack archives; what is there already is left alone."""
    with told():
        names = sys.argv[1:]
        if not names or set(names) - set(SOURCES):
            raise UserError(f"name some of {', '.join(SOURCES)}; zinc_full comes with zinc")
        root = os.environ.get("DATA_DIR")
        if not root:
            raise UserError("set DATA_DIR to the folder that the data is to go to")
        for name in names:
            print(download(SOURCES[name], Path(root)))


def download(source: _Files, root: Path) -> Path:
    """Fetch the files of a data set, and give their folder."""
    folder = root / source.folder
    if source.archive:
        name = source.archive.rpartition("/")[2].partition("?")[0]
        extract(fetch(source.archive, root / name), folder.parent)
    for url in source.urls:
        fetch(url, folder / url.rpartition("/")[2])
    return folder


if __name__ == "__main__":
    main()
