"""Own texts: csv files with a column of texts, perhaps of second texts, and a column of labels."""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from experiment_kit.data.csv_files import find_split_files, read_csv_cells
from experiment_kit.data.datamodule import split_stratified
from experiment_kit.errors import UserError
from experiment_kit.run_files import warn_once

from attention_nlp.data.base import LanguageData
from attention_nlp.data.encoding import Example


class CsvText(LanguageData):
    """Texts of csv files in DATA_DIR, by the names of their columns, and their classes.

    Classes are the values of the label column, in the order of their names.

    Args:
        file: Name of the csv file.
        test_file: Name of the file of the test set; null takes the test.csv beside a train.csv,
            or else a fifth of the rows of `file`, the same for every run.
        text_column: Name of the column of texts.
        pair_column: Name of the column of second texts; null is none.
        label_column: Name of the column of classes.
    """

    DATASETS = ("csv_text",)

    def __init__(
        self,
        dataset_name: str = "csv_text",
        data_dir: str | None = None,
        file: str = "texts.csv",
        test_file: str | None = None,
        text_column: str = "text",
        pair_column: str | None = None,
        label_column: str = "label",
        **kwargs: Any,
    ) -> None:
        super().__init__(dataset_name, data_dir, **kwargs)
        if test_file and Path(test_file) == Path(file):
            raise UserError(f"data.test_file is data.file, {file}: leave it out to split the rows")
        self.file, self.test_file = file, test_file
        self.columns = [label_column, text_column, *([pair_column] if pair_column else [])]

    def find_split(self, split: str) -> Path:
        """Find the file of a split below DATA_DIR; UserError if there is none."""
        name = self.test_file if split == "dev" and self.test_file else self.file
        path = self.require_folder(name) / name
        if not path.is_file():
            raise UserError(f"no {path}: below DATA_DIR, data.file names the csv file")
        if split == "train" or self.test_file:
            return path
        found = find_split_files(path, self.columns)
        if "val" in found:
            warn_once(f"{found['val']} is not read: a part of {path.name} validates")
        return found.get("test", path)

    def list_data_files(self) -> Sequence[Path]:
        """List the csv files."""
        return list(dict.fromkeys(self.find_split(split) for split in self.FILE_SPLITS))

    @cached_property
    def train_rows(self) -> list[list[str]]:
        """Label, text and second text of each row of `file`."""
        return self._read_rows("train")

    @cached_property
    def label_names(self) -> Sequence[str]:
        """The names of the classes."""
        counts = Counter(label for label, *_ in self.train_rows)
        if len(found := sorted(counts)) < 2:
            raise UserError(f"{self.file} has one class, {found[0]!r}: classification takes two")
        if len(found) > max(20, len(self.train_rows) / 2):
            count = f"{len(found)} values in {len(self.train_rows)} rows"
            raise UserError(f"{self.file} has {count} of {self.columns[0]}: these are no classes")
        missing = ("?", "-", "NA", "N/A", "#N/A", "NaN", "nan", "<NA>", "NULL", "None")
        if odd := [x for x in found if counts[x] == 1 or x in missing]:
            named = ", ".join(f"{x!r} ({counts[x]} rows)" for x in odd[:5])
            warn_once(f"{self.file} has classes {named}: if their labels are lost, remove the rows")
        bare = {name.strip("[]"): name for name in found}
        joint = [bare[x] for x in bare if bare.keys() & {*re.split(r"[,;|]\s*", x)} - {x}]
        if joint:
            warn_once(f"{self.file} has {joint[0]!r}: joint labels are a class of their own")
        with suppress(ValueError):  # half stars and 0.0 or 1.0 may be classes, many scores are not
            if sum(not float(name.replace(",", ".")).is_integer() for name in found) > 5:
                text = f"{self.columns[0]} of {self.file} has numbers with decimals"
                warn_once(f"{text}: each of the {len(found)} is learned as a class, without order")
        return found

    def read_split(self, split: str) -> Sequence[Example]:
        """Read the examples of `train` or `dev`."""
        path = self.find_split("dev")
        has_test = path != self.find_split("train")
        if has_test and split == "dev":
            rows = self._read_rows("dev")
            if unseen := sorted({label for label, *_ in rows} - set(self.label_names)):
                text = f"{path} has classes that {self.file} lacks: {', '.join(unseen)}"
                raise UserError(f"{text}: data.test_file names another file, or move this one away")
            return self._make_examples(rows)
        examples = self._make_examples(self.train_rows)
        if has_test:
            return examples
        labels = np.array([example.target for example in examples])
        return [examples[i] for i in split_stratified(labels, 1 / 5, seed=0)[split == "dev"]]

    def _read_rows(self, split: str) -> list[list[str]]:
        return [cells for _, cells in read_csv_cells(self.find_split(split), self.columns)]

    def _make_examples(self, rows: Sequence[Sequence[str]]) -> list[Example]:
        numbers = {name: number for number, name in enumerate(self.label_names)}
        return [Example(text, pair[0] if pair else None, numbers[label])
                for label, text, *pair in rows]  # fmt: skip
