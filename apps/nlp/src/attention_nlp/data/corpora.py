"""Penn Treebank, WikiText-2 and WikiText-103 for causal language modelling.

A corpus is tokenized into one stream and cut into spans, of which some tokens are scored.

Shapes: T tokens in a stream, S spans of at most N tokens, B spans in a batch.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from experiment_kit.errors import UserError
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from attention_nlp.data.base import LanguageData
from attention_nlp.data.encoding import collate_texts, pad_rows
from attention_nlp.data.files import get_text, parse_rows, read_lines
from attention_nlp.tasks.base import IGNORED

HUB = "Salesforce/wikitext"
_HUB_SPLITS = {"train": "train", "valid": "validation", "test": "test"}
_FILE_SPLITS = {"train": "train", "val": "valid", "test": "test"}
GROUP_SIZE = 1000  # rows that `datasets` maps at once by default


class TextRow(NamedTuple):
    """A row of a corpus and its number of words, which counts a line end."""

    text: str
    num_words: int


class TokenStream(NamedTuple):
    """Token ids (T,) and the number of words (T,) that each token stands for.

    The words of a row are spread over its tokens, so that a part of a stream has its share.
    """

    ids: Tensor
    num_words: Tensor

    def prepend(self, token_id: int) -> "TokenStream":
        """Prepend a token that belongs to no word, the context of the first token."""
        return TokenStream(pad(self.ids, (1, 0), value=token_id), pad(self.num_words, (1, 0)))


def tokenize_rows(
    rows: Sequence[TextRow], tokenizer: PreTrainedTokenizerFast, block: int | None = None
) -> TokenStream:
    """Tokenize all rows and concatenate them.

    With a `block`, each 1,000 rows keep only the tokens that fill whole blocks: the grouping of
    https://github.com/huggingface/transformers/blob/v4.32.0/examples/pytorch/language-modeling/run_clm_no_trainer.py,
    which drops the rest, and with it 1,000 rows that are shorter than a block.

    >>> from attention_nlp.tokenizer import train_tokenizer
    >>> rows, tokenizer = [TextRow("to be", 2), TextRow("or", 1)], train_tokenizer("gpt2", [], 261)
    >>> tokenize_rows(rows, tokenizer).num_words.tolist()
    [0, 0, 1, 0, 1, 0, 1]
    >>> len(tokenize_rows(rows, tokenizer, block=3).ids)
    6
    """
    ids, words = [torch.zeros(0, dtype=torch.int32)], [torch.zeros(0, dtype=torch.int32)]
    for start in range(0, len(rows), GROUP_SIZE):
        group = rows[start : start + GROUP_SIZE]
        encoded = tokenizer(
            [row.text for row in group],
            add_special_tokens=False,
            return_attention_mask=False,
            verbose=False,  # rows may be longer than the model's positions here
        )["input_ids"]
        lengths = np.array([len(row) for row in encoded])
        kept = lengths.sum() if block is None else lengths.sum() // block * block
        flat = [token for row in encoded for token in row]
        ids.append(torch.tensor(flat[:kept], dtype=torch.int32))
        spread = _spread_words(lengths, np.array([row.num_words for row in group]))
        words.append(torch.from_numpy(spread[:kept].astype(np.int32)))
    return TokenStream(torch.cat(ids), torch.cat(words))


def _spread_words(lengths: np.ndarray, num_words: np.ndarray) -> np.ndarray:
    """Spread the w words of a row over its n tokens: floor(j w / n) words to the first j."""
    n, w = np.repeat(lengths, lengths), np.repeat(num_words, lengths)
    j = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
    return (j + 1) * w // n - j * w // n


def list_blocks(length: int, block: int) -> Tensor:
    """List adjacent spans (S, 3): the start, the first scored token, the end.

    The first token of a block has no context and is not scored.

    >>> list_blocks(7, 3).tolist()
    [[0, 1, 3], [3, 4, 6], [6, 7, 7]]
    """
    start = torch.arange(0, length, block)
    return torch.stack([start, start + 1, (start + block).clamp(max=length)], 1)


def list_windows(length: int, block: int, stride: int) -> Tensor:
    """List overlapping spans (S, 3) that score each token but the first exactly once.

    A scored token has at least `block - stride` tokens before it, or all that there are.
    Source: https://huggingface.co/docs/transformers/perplexity

    >>> list_windows(7, 4, 2).tolist()
    [[0, 1, 4], [2, 4, 6], [4, 6, 7]]
    """
    start = torch.arange(0, max(length - block, 0) + stride, stride)
    end = (start + block).clamp(max=length)
    return torch.stack([start, torch.cat([torch.ones_like(end[:1]), end[:-1]]), end], 1)


class TextSpans(Dataset[Any]):
    """Spans of a stream: ids (N,), target (N,) with -100 where not scored, scored words."""

    def __init__(self, stream: TokenStream, spans: Tensor) -> None:
        self.stream, self.spans = stream, spans

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        start, scored, end = self.spans[index].tolist()
        ids = self.stream.ids[start:end].long()
        target = ids.clone()
        target[: scored - start] = IGNORED
        return ids, target, int(self.stream.num_words[scored:end].sum())


def collate_spans(pad_token_id: int, items: Sequence[tuple[Tensor, Tensor, int]]) -> list[Tensor]:
    """Pad spans on the right: ids, mask, types and target (B, N), scored words (B,)."""
    texts = [(ids, torch.zeros_like(ids), num_words) for ids, _, num_words in items]
    *inputs, num_words = collate_texts(pad_token_id, texts)
    return [*inputs, pad_rows([target for _, target, _ in items], IGNORED), num_words]


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
    line is an empty row unless `blank_lines` keeps it. Words are separated by white space, and
    every `line_end` is one too; with `blank_lines` this is the usual count, 245,569 in the test
    split of WikiText-2.

    Args:
        protocol: `validation` selects the epoch on the validation split and scores the test split
            once, both by a sliding window; `released`, the papers', scores the validation split
            in whole blocks.
        stride: Steps of the window: every token has max_length - stride tokens before it; null is
            half a block.
        grouping: Blocks of the training text: `released` drops the tokens of each 1,000 rows that
            fill none, `stream` drops nothing.
        line_end: Text at the end of a line; GFSA's script has none in PTB, so that a sentence runs
            into the next one.
        blank_lines: Keep blank lines.
    """

    has_answers = False
    DATASETS: ClassVar[Mapping[str, CorpusFiles]] = CORPORA
    FILE_SPLITS = ("train", "valid", "test")
    collate_items = staticmethod(collate_spans)

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
            text = f"data.stride must be from 1 to data.max_length - 1, which is {max_length - 1},"
            raise ValueError(f"{text} got {self.stride}")

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
            text = f"the {split} split of {self.dataset_name} has no {block} tokens in 1,000"
            raise UserError(f"{text} rows, which grouping `released` needs: lower data.max_length")
        return TextSpans(tokens, list_blocks(len(tokens.ids), self.max_length))

    def _make_windows(self, split: str) -> Dataset[Any]:
        if self.eos_token_id < 0:
            raise UserError(f"data.tokenizer of {self.tokenizer_name} has no end of sequence")
        tokens = tokenize_rows(self.read_rows(split), self.tokenizer).prepend(self.eos_token_id)
        return TextSpans(tokens, list_windows(len(tokens.ids), self.max_length, self.stride))
