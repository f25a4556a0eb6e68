"""Penn Treebank, WikiText-2 and WikiText-103 for causal language modelling."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from experiment_kit.errors import UserError
from torch.utils.data import Dataset

from attention_nlp.data.base import LanguageData
from attention_nlp.data.files import first_file, hub_rows, table, text, texts
from attention_nlp.data.streams import CollateSpans, Row, Spans, blocks, sliding, stream

HUB = "Salesforce/wikitext"
_HUB_SPLITS = {"train": "train", "valid": "validation", "test": "test"}
_READ_AS = {"train": "train", "val": "valid", "test": "test"}


class Source(NamedTuple):
    """Where the files of a corpus are looked for, their names, and whether the hub has it."""

    folders: tuple[str, ...]
    files: tuple[str, ...]
    hub: bool
    hint: str


def _wikitext(name: str, raw: bool) -> Source:
    hint = "the wiki.*.raw files, whose rare words are kept" if raw else "wiki.*.tokens, with <unk>"
    if raw:
        return Source((f"{name}-raw", f"{name}-raw-v1"), ("wiki.{}.raw",), True, hint)
    return Source((name, f"{name}-v1"), ("wiki.{}.tokens", "{}.txt"), True, hint)


KNOWN = {
    "ptb": Source(
        ("ptb", "penn", "simple-examples/data"),
        ("ptb.{}.txt",),
        False,
        "Mikolov's ptb.{train,valid,test}.txt, which have a licence of their own",
    ),
    "wikitext-2-raw-v1": _wikitext("wikitext-2", raw=True),
    "wikitext-2-v1": _wikitext("wikitext-2", raw=False),
    "wikitext-103-raw-v1": _wikitext("wikitext-103", raw=True),
    "wikitext-103-v1": _wikitext("wikitext-103", raw=False),
}


class Corpus(LanguageData):
    """A text in blocks of `max_length` tokens, which are ids, mask, types, target and words.

    The WikiText names are those of `datasets`: `-raw-v1` is the text as it was, of the papers,
    `-v1` the one with rare words as <unk>. Rows are those of `datasets`: lines, stripped in PTB,
    behind each `line_end`, and blank ones empty unless `blank_lines` keeps them. GFSA's released
    script has no `line_end` in PTB, so that a sentence runs into the next one.

    `grouping` is how the training text is cut: `released` drops what remains of the tokens of
    each 1,000 rows, `stream` nothing. Protocol `validation` chooses the epoch on the validation
    split and scores the test split once, both by a sliding window, so that every token is scored
    once, with at least `max_length - stride` before it (half a block by default). Protocol
    `released` is the papers': the validation split, in blocks, without the remainders.

    Words are those between white space, and every `line_end` is one too; with `blank_lines` that
    is the usual count, 245,569 in the test split of WikiText-2.

    Raises ValueError for an argument out of its range.
    """

    num_labels = 1
    known: ClassVar[Mapping[str, Any]] = KNOWN

    def __init__(
        self,
        name: str,
        data_dir: str | None = None,
        protocol: Literal["validation", "released"] = "validation",
        architecture: str = "gpt2",
        weights: str | None = None,
        tokenizer: str | None = None,
        vocabulary: int = 4096,
        max_length: int = 1024,
        stride: int | None = None,
        grouping: Literal["released", "stream"] = "released",
        line_end: str = "\n",
        blank_lines: bool = False,
        batch_size: int = 4,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            name,
            data_dir,
            architecture=architecture,
            weights=weights,
            tokenizer=tokenizer,
            vocabulary=vocabulary,
            max_length=max_length,
            batch_size=batch_size,
            num_workers=num_workers,
            seed=seed,
        )
        self.protocol = protocol  # type: ignore[assignment]  # of this data's own two
        self.grouping, self.line_end, self.blank_lines = grouping, line_end, blank_lines
        self.stride = max_length // 2 if stride is None else stride
        if not 1 <= self.stride < max_length:
            raise ValueError(
                f"data.stride must be from 1 to data.max_length - 1, which is {max_length - 1}, "
                f"got {self.stride}"
            )

    @staticmethod
    def whereabouts(name: str) -> Path:
        """Where the training text lies; raises UserError where it is not under DATA_DIR."""
        return Corpus(name)._file("train")

    def _file(self, split: str) -> Path:
        source, root = KNOWN[self.problem], self.folder
        if root is None:
            raise UserError(
                f"no {self.problem}: set DATA_DIR to the folder that holds {source.hint}"
            )
        folders = [place / name for name in source.folders for place in (root, root / "text")]
        names = [name.format(split) for name in source.files]
        names += [f"{_HUB_SPLITS[split]}.parquet"] if source.hub else []  # as `datasets` writes it
        if found := first_file(folders, names):
            return found
        raise UserError(
            f"no {' or '.join(names)} in {' or '.join(source.folders)} of DATA_DIR {root}: "
            f"put {source.hint} there"
        )

    def _lines(self, split: str) -> Iterator[str]:
        if self.folder is None and KNOWN[self.problem].hub:
            rows, where = hub_rows(HUB, self.problem, _HUB_SPLITS[split]), f"{HUB} {split}"
        elif (path := self._file(split)).suffix == ".parquet":
            rows, where = table(path, ["text"]), str(path)
        else:
            return texts(path)
        numbered = ((row, f"{where}, row {number}") for number, row in enumerate(rows, 1))
        return (text(row, "text", at).removesuffix("\n") for row, at in numbered)

    def rows(self, split: str) -> list[Row]:
        """The rows of a split and their words; raises UserError where it has none."""
        found = [self._row(line) for line in self._lines(split)]
        if not any(row.text.strip() for row in found):
            raise UserError(f"the {split} split of {self.problem} has no text")
        return found

    def _row(self, line: str) -> Row:
        if not line.strip() and not self.blank_lines:
            return Row("", 0)
        whole = line.strip() if self.problem == "ptb" else line
        return Row(whole + self.line_end, len(line.split()) + bool(self.line_end))

    def training_texts(self) -> list[str]:
        """What a tokenizer is trained on."""
        return [row.text for row in self.rows("train")]

    def _make(self, name: str) -> None:
        if name != "train" and self.protocol != "validation":
            self.parts |= dict.fromkeys(("val", "test"), self._blocks("valid", "released"))
        elif name == "train":
            self.parts[name] = self._blocks("train", self.grouping)
        else:
            self.parts[name] = self._windows(_READ_AS[name])

    def _blocks(self, split: str, grouping: str) -> Dataset[Any]:
        block = self.max_length if grouping == "released" else None
        tokens = stream(self.rows(split), self.tokenizer, block)
        if not len(tokens.ids):
            raise UserError(
                f"the {split} split of {self.problem} has no {block} tokens in 1,000 rows, which "
                "its released grouping asks for: lower data.max_length"
            )
        return Spans(tokens, blocks(len(tokens.ids), self.max_length))

    def _windows(self, split: str) -> Dataset[Any]:
        if self.eos < 0:
            raise UserError(
                f"data.tokenizer of {self.named or self.weights} has no end of sequence"
            )
        tokens = stream(self.rows(split), self.tokenizer).after(self.eos)
        return Spans(tokens, sliding(len(tokens.ids), self.max_length, self.stride))

    @property
    def collate(self) -> Any:
        """What makes a batch of spans."""
        return CollateSpans(self.tokenizer.pad_token_id)
