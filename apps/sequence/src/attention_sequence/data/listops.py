"""ListOps: what is the value of a nested list of operations on digits?

https://arxiv.org/abs/1804.06028
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from experiment_kit.data.folders import make_cache
from experiment_kit.errors import UserError

from attention_sequence.data import long_range

HEADER = ["Source", "Target"]
DRAWN = Path("runs/data/listops-drawn")
_FILES = {"train": "basic_train.tsv", "val": "basic_val.tsv", "test": "basic_test.tsv"}

# sorted: the published ids follow the order of a set, which differs from process to process
TOKENS = (*"0123456789", "[MAX", "[MED", "[MIN", "[SM", "]")
_SHORT = dict(zip(TOKENS[10:14], b"\x01\x02\x03\x04", strict=True))  # a byte for each token
_CODES = bytes.maketrans(
    bytes([*b"0123456789", *_SHORT.values(), ord("]")]), bytes(range(len(TOKENS)))
)
_VALID = b"0123456789]() \x01\x02\x03\x04"


class ListOps(long_range.LongRangeData):
    """Expressions of 500 to 2,000 of the 15 tokens in `TOKENS`, and their values 0..9.

    Parentheses, which only make the tree binary, are left out; `]` stays a token. `drawn` needs no
    file, for a first try: 2,000 expressions are drawn once into `runs/data`, of which 40 choose the
    checkpoint and 40 test.

    Source: https://github.com/google-research/long-range-arena
    """

    DATASETS: ClassVar[Mapping[str, long_range.TaskInfo]] = dict.fromkeys(
        ("listops-1000", "drawn"), long_range.TaskInfo(10, 15, 2000, 2048, 32)
    )
    FOLDERS = ("{}",)
    MARKERS = (_FILES["train"],)
    HINT = f"download {long_range.RELEASE}, or draw it by `allpass data listops`"

    @classmethod
    def find_data(cls, dataset_name: str, data_dir: str | None = None) -> Path:
        """Return the folder of the files."""
        return DRAWN if dataset_name == "drawn" else super().find_data(dataset_name, data_dir)

    def list_data_files(self) -> Sequence[Path]:
        """Return the folder of the files; none of expressions that are drawn."""
        return () if self.dataset_name == "drawn" else super().list_data_files()

    @classmethod
    def count_samples(cls, dataset_name: str, data_dir: str | None = None) -> dict[str, int]:
        """Count the rows below the headers; `drawn` has 2,000, whether they are drawn or not."""
        if dataset_name == "drawn":
            return {"train": 1920, "test": 40}
        folder = cls.find_data(dataset_name, data_dir)
        return {
            split: long_range.count_lines(folder / _FILES[split]) - 1 for split in ("train", "test")
        }

    def read_examples(self, split: str) -> long_range.Examples:
        """Read the expressions of a split; draw them if that is their name."""
        folder = self.find_data(self.dataset_name, self.data_dir)
        if self.dataset_name == "drawn":
            from attention_sequence.generate import listops  # numba takes a second to import

            draw = partial(listops.write_dataset, count=2000, num_workers=1)
            folder = make_cache(folder, draw) / "listops-1000"
        return read_expressions(folder / _FILES[split])


def read_expressions(path: Path) -> long_range.Examples:
    """Read a file of expressions and values."""
    rows = long_range.read_rows(path, HEADER)
    header = [cell.decode(errors="replace") for cell in next(rows)[2]]
    if header != HEADER:
        raise UserError(f"{path} has the header {header!r:.60}, not {HEADER}")
    labels: list[int] = []

    def parse_rows() -> Iterator[bytes]:
        for where, _, (source, target) in rows:
            labels.append(long_range.parse_label(target, 10, where))
            if not (tokens := encode_tokens(source, where)):
                raise UserError(f"{where} has no expression")
            yield tokens

    sequences = long_range.RaggedArray(parse_rows())
    if not labels:
        raise UserError(f"{path} holds no expression")
    return long_range.Examples(sequences, np.array(labels))


def encode_tokens(source: bytes, where: str) -> bytes:
    r"""Return the index in `TOKENS` of each token of an expression, a byte each."""
    short = source
    for token, byte in _SHORT.items():
        short = short.replace(token.encode(), bytes([byte]))
    bare = short.translate(None, b" ")
    # unless there are only known tokens, with spaces between them, find the unknown one
    if short.translate(None, _VALID) or len(bare) != len(short.split()):
        tokens = source.decode(errors="replace").split(" ")
        wrong = next(token for token in tokens if token and token not in (*TOKENS, "(", ")"))
        raise UserError(f"{where} has the unknown token {wrong[:20]!r}; known: {' '.join(TOKENS)}")
    return bare.translate(_CODES, b"()")
