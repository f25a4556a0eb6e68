"""Download the UEA archive into DATA_DIR: `python -m attention_sequence.download`."""

import os
from pathlib import Path

from experiment_kit.data.archive import extract
from experiment_kit.data.download import fetch
from experiment_kit.errors import UserError
from experiment_kit.sentences import told

SOURCE = (
    "https://www.timeseriesclassification.com/ClassificationDownloads/Archives/"
    "Multivariate2018_ts.zip"
)


def main() -> None:
    """Fetch the archive, check it, unpack it; what is there already is left alone."""
    with told():
        folder = os.environ.get("DATA_DIR")
        if not folder:
            raise UserError("set DATA_DIR to the folder that the archive is to go to")
        archive = fetch(SOURCE, Path(folder) / "Multivariate2018_ts.zip")
        extract(archive, Path(folder) / "Multivariate_ts")


if __name__ == "__main__":
    main()
