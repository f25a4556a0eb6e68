"""Penn Treebank, WikiText-2 and WikiText-103 for causal language modelling."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from experiment_kit.errors import UserError
from torch.utils.data import Dataset

from attention_nlp.data.base import LanguageData
from attention_nlp.data.files import get_text, parse_rows, read_lines
from attention_nlp.data.spans import (
    SpanCollator,
    TextRow,
    TextSpans,
    list_blocks,
    list_windows,
    tokenize_rows,
)

HUB = "Salesforce/wikitext"
_HUB_SPLITS = {"train": "train", "valid": "validation", "test": "test"}
_FILE_SPLITS = {"train": "train", "val": "valid", "test": "test"}


class CorpusFiles(NamedTuple):
    """The folders and file names of a corpus, and if the hub has it."""

    folders: tuple[str, ...]
    names: tuple[str, ...]
    hub: bool
    hint: str


def _wikitext_files(name: str, raw: bool) -> CorpusFiles:
    if raw:
        hint = "the wiki.*.raw files, which keep rare words"
        return CorpusFiles((f"{name}-raw", f"{name}-raw-v1"), ("wiki.{}.raw",), True, hint)
    hint = "wiki.*.tokens, with <unk>"
    return CorpusFiles((name, f"{name}-v1"), ("wiki.{}.tokens", "{}.txt"), True, hint)


CORPORA = {
    "ptb": CorpusFiles(
        ("ptb", "penn", "simple-examples/data"),
        ("ptb.{}.txt",),
        False,
        "Mikolov's ptb.{train,valid,test}.txt, which have a licence of their own",
    ),
    "wikitext-2-raw-v1": _wikitext_files("wikitext-2", raw=True),
    "wikitext-2-v1": _wikitext_files("wikitext-2", raw=False),
    "wikitext-103-raw-v1": _wikitext_files("wikitext-103", raw=True),
    "wikitext-103-v1": _wikitext_files("wikitext-103", raw=False),
}


class Corpus(LanguageData):
    """A text in blocks of `max_length` tokens: ids, mask, types, target and number of words.

    The WikiText names are those of `datasets`: `-raw-v1` is the original text, as in the papers,
    `-v1` writes rare words as <unk>. A row is a line (stripped in PTB) and `line_end`; a blank
    line is an empty row unless `blank_lines` keeps it. GFSA's released script has no `line_end` in
    PTB, so that a sentence runs into the next one.

    `grouping` cuts the training text into blocks: `released` drops the tokens of each 1,000 rows
    that fill no block, `stream` drops nothing. Protocol `validation` selects the epoch on the
    validation split and scores the test split once, both by a sliding window: every token is
    scored once, with at least `max_length - stride` tokens before it (half a block by default).
    Protocol `released` is the papers': it scores the validation split in whole blocks.

    Words are separated by white space, and every `line_end` is one too; with `blank_lines` this is
    the usual count, 245,569 in the test split of WikiText-2.

    Raises ValueError for an argument out of its range.
    """

    num_labels = 1
    has_answers = False
    DATASETS: ClassVar[Mapping[str, CorpusFiles]] = CORPORA
    FILE_SPLITS = ("train", "valid", "test")

    def __init__(
        self,
        dataset_name: str,
        data_dir: str | None = None,
        protocol: Literal["validation", "released"] = "validation",
        architecture: str = "gpt2",
        vocab_size: int = 4096,
        max_length: int = 1024,
        batch_size: int = 4,
        stride: int | None = None,
        grouping: Literal["released", "stream"] = "released",
        line_end: str = "\n",
        blank_lines: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            dataset_name,
            data_dir,
            architecture=architecture,
            vocab_size=vocab_size,
            max_length=max_length,
            batch_size=batch_size,
            **kwargs,
        )
        self.protocol = protocol  # type: ignore[assignment]  # it has protocols of its own
        self.grouping, self.line_end, self.blank_lines = grouping, line_end, blank_lines
        self.stride = max_length // 2 if stride is None else stride
        if not 1 <= self.stride < max_length:
            raise ValueError(
                f"data.stride must be from 1 to data.max_length - 1, which is {max_length - 1}, "
                f"got {self.stride}"
            )

    def name_hub_table(self, split: str) -> tuple[str, str, str] | None:
        """Return repository, config and split on the hub; None for PTB."""
        is_there = CORPORA[self.dataset_name].hub
        return (HUB, self.dataset_name, _HUB_SPLITS[split]) if is_there else None

    def find_split(self, split: str) -> Path:
        """Find the file of `train`, `valid` or `test` below DATA_DIR; UserError if none."""
        files = CORPORA[self.dataset_name]
        names = [name.format(split) for name in files.names]
        names += [f"{_HUB_SPLITS[split]}.parquet"] if files.hub else []  # written by `datasets`
        folders = [f"{top}{name}" for name in files.folders for top in ("", "text/")]
        return self.find_file(folders, names, files.hint)

    def read_lines(self, split: str) -> Iterable[str]:
        """Read the lines of a split."""
        path = self.folder and self.find_split(split)
        if path and path.suffix != ".parquet":
            return read_lines(path)
        where, rows = self.open_split(split)
        return parse_rows(rows, where, lambda row: get_text(row, "text").removesuffix("\n"))

    def read_rows(self, split: str) -> list[TextRow]:
        """Read the rows of a split with their numbers of words; UserError if all are blank."""
        rows = []
        for line in self.read_lines(split):
            if line.strip() or self.blank_lines:
                text = line.strip() if self.dataset_name == "ptb" else line
                num_words = len(line.split()) + bool(self.line_end)
                rows.append(TextRow(text + self.line_end, num_words))
            else:
                rows.append(TextRow("", 0))
        if not any(row.text.strip() for row in rows):
            raise UserError(f"the {split} split of {self.dataset_name} has no text")
        return rows

    def list_training_texts(self) -> list[str]:
        """List the texts to train a tokenizer on."""
        return [row.text for row in self.read_rows("train")]

    def load_splits(self, split: str) -> dict[str, Dataset[Any]]:
        """Tokenize a split and cut it into spans."""
        if split == "train":
            return {split: self._make_blocks("train", self.grouping)}
        if self.protocol == "validation":
            return {split: self._make_windows(_FILE_SPLITS[split])}
        return dict.fromkeys(("val", "test"), self._make_blocks("valid", "released"))

    def _make_blocks(self, split: str, grouping: str) -> Dataset[Any]:
        block = self.max_length if grouping == "released" else None
        tokens = tokenize_rows(self.read_rows(split), self.tokenizer, block)
        if not len(tokens.ids):
            raise UserError(
                f"the {split} split of {self.dataset_name} has no {block} tokens in 1,000 rows, "
                "which grouping `released` needs: lower data.max_length"
            )
        return TextSpans(tokens, list_blocks(len(tokens.ids), self.max_length))

    def _make_windows(self, split: str) -> Dataset[Any]:
        if self.eos_token_id < 0:
            raise UserError(f"data.tokenizer of {self.tokenizer_name} has no end of sequence")
        tokens = tokenize_rows(self.read_rows(split), self.tokenizer).prepend(self.eos_token_id)
        return TextSpans(tokens, list_windows(len(tokens.ids), self.max_length, self.stride))

    @property
    def collate(self) -> Any:
        """Make batches of spans."""
        return SpanCollator(self.tokenizer.pad_token_id)
