"""Every cut of a small archive, and every flipped bit: it is refused, or its content is right.

Run by `make robustness`; tests/kit/data/test_archives.py tries a sample of them.
"""

from pathlib import Path

import pytest

from tests.kit.data.archive_samples import (
    NAMES,
    SAMPLE,
    find_tar_end,
    flip_bit,
    is_refused,
    make_archive,
)

pytestmark = pytest.mark.robustness


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_every_cut(name: str, tmp_path: Path) -> None:
    data = make_archive(tmp_path / name, SAMPLE).read_bytes()
    end = find_tar_end(data) if name == "x.tar" else len(data)
    # of a tar, which is mostly zeros, four a block
    lengths = [n for n in range(len(data)) if name != "x.tar" or n % 512 in (0, 1, 99, 511)]
    accepted = [n for n in lengths if not is_refused(tmp_path / name, data[:n])]
    assert accepted == [n for n in lengths if n >= end]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "x.tar"])
def test_every_flipped_bit(name: str, tmp_path: Path) -> None:
    data = make_archive(tmp_path / name, SAMPLE).read_bytes()
    accepted = [
        n for n in range(8 * len(data)) if not is_refused(tmp_path / name, flip_bit(data, n))
    ]
    assert len(accepted) < 2 * len(data)  # dates and the like: is_refused compares the content
