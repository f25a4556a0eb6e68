"""The base class of all data sets of texts: tokenizer, splits, protocols and loaders."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from experiment_kit.data import datamodule
from experiment_kit.errors import UserError
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from attention_nlp import tokenizer as tokenizers
from attention_nlp.data.encoding import SEPARATOR, Example, collate_texts, encode_texts
from attention_nlp.data.files import Row, find_hub_table, load_hub_rows, read_samples, read_table
from attention_nlp.models import checkpoints

TOKENIZERS = Path("runs/tokenizers")


class LanguageData(datamodule.SplitDataModule):
    """Texts as batches of ids, mask, types and target; a subclass finds and reads the data set.

    A subclass sets `DATASETS` and `label_names` or `num_labels`, and defines `find_split` and
    `read_split`; it may override `encode_examples` and `collate_items`. `LINKED_SIZES` are linked
    to the model.

    Protocol `validation` holds a stratified `val_fraction` of the training texts out to select the
    epoch and scores the official development set once, as the labels of the benchmarks' test sets
    are not public. Protocol `test` is the papers': it trains on all and scores the development set
    after each epoch; its best epoch is an upper bound, its last is what the released code reports.

    Args:
        architecture: The model's.
        weights: The model's; null is random weights.
        tokenizer: Folder, hub id or run that has it; null is that of the weights, or one that is
            trained on the training texts.
        vocab_size: Tokens of a trained tokenizer.
        max_length: Tokens of a text; longer ones are cut.
    """

    has_answers = True  # a sample has one label or number, as opposed to a language model's
    # `fit` also reads the test split, so that a bad file fails before training starts
    STAGES: ClassVar[Mapping[str, Sequence[str]]] = {
        **datamodule.SplitDataModule.STAGES,
        "fit": ("train", "val", "test"),
    }
    FILE_SPLITS: ClassVar[Sequence[str]] = ("train", "dev")
    encode_examples: Any = staticmethod(encode_texts)
    collate_items: Any = staticmethod(collate_texts)
    LINKED_SIZES = ("num_labels", "vocab_size", "max_length", "pad_token_id", "eos_token_id")

    def __init__(
        self,
        dataset_name: str,
        data_dir: str | None = None,
        architecture: str = "bert",
        weights: str | None = None,
        tokenizer: str | None = None,
        vocab_size: int = 8192,
        max_length: int = 128,
        **kwargs: Any,
    ) -> None:
        super().__init__(dataset_name, data_dir, **kwargs)
        datamodule.check_at_least(1, max_length=max_length)
        datamodule.check_at_least(16, vocab_size=vocab_size)  # some tokens are special
        self.architecture, self.weights, self.max_length = architecture, weights, max_length
        self.tokenizer_name, self.trained_vocab_size = tokenizer or weights, vocab_size

    @property
    def num_labels(self) -> int:
        """Return the number of labels; 1 if the target is a number."""
        return len(self.label_names or (0,))

    @classmethod
    def find_data(cls, dataset_name: str, data_dir: str | None = None) -> Path:
        """Find the training file of a data set; UserError if it is neither local nor cached."""
        data = cls(dataset_name, data_dir=data_dir)
        if data.folder is None and (paths := data.find_cached("train")):
            return paths[0]
        return data.find_split("train")

    def list_data_files(self) -> Sequence[Path]:
        """List the files of the splits that are here; the hub has none."""
        found = []
        for split in self.FILE_SPLITS if not self.IS_GENERATED and self.folder else ():
            with suppress(UserError):  # not every data set has every split
                found.append(self.find_split(split))
        return found

    @cached_property
    def folder(self) -> Path | None:
        """Return the folder of local data; None if the hub's is read, as where its cache has it."""
        self.folder = datamodule.find_data_root(self.data_dir)  # which `find_split` looks into
        if self.folder is not None and self.find_cached("train"):
            try:
                self.find_split("train")
            except UserError:
                return None
        return self.folder

    def name_hub_table(self, split: str) -> tuple[str, str | None, str] | None:
        """Return repository, config and split on the hub; None if the hub lacks the data set."""
        return None

    def find_cached(self, split: str) -> Sequence[Path]:
        """Return the files of a split of the hub's that are in its local cache."""
        table = self.name_hub_table(split)
        return find_hub_table(*table) if table else ()

    def require_folder(self, name: str, content: str = "it") -> Path:
        """Return the folder of local data; UserError if DATA_DIR is not set."""
        if self.folder is None and not Path(name).is_absolute():
            raise UserError(f"no {name}: set DATA_DIR to the folder that holds {content}")
        return self.folder or Path("/")

    def find_file(self, folders: Sequence[str], names: Sequence[str], hint: str = "it") -> Path:
        """Find the first file with one of the names in one of the folders of DATA_DIR."""
        root = self.require_folder(self.dataset_name, hint)
        candidates = (root / folder / name for folder in folders for name in names)
        if found := next(filter(Path.is_file, candidates), None):
            return found
        where = " or ".join(filter(None, folders))
        text = f"no {' or '.join(names[:4])}"
        raise UserError(f"{text} in {where} of DATA_DIR {root}: put {hint} there")

    def open_split(self, split: str) -> tuple[str, Iterable[Row]]:
        """Return the place and the rows of a split: of its file below DATA_DIR, or of the hub."""
        if self.folder is None and (table := self.name_hub_table(split)):
            return f"{table[0]} {split}", load_hub_rows(*table)
        path = self.find_split(split)
        return str(path), read_table(path)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Load the tokenizer of the weights, or train one on the training texts."""
        if self.tokenizer_name:
            return tokenizers.load_tokenizer(self.tokenizer_name)
        texts, size = self.list_training_texts(), self.trained_vocab_size
        return tokenizers.train_cached_tokenizer(TOKENIZERS, self.architecture, texts, size, texts)

    @cached_property
    def vocab_size(self) -> int:
        """Return the number of token ids; no training text is read for it."""
        if self.weights and checkpoints.is_own_run(self.weights):
            return checkpoints.load_vocab_size(self.weights)
        return len(self.tokenizer) if self.tokenizer_name else self.trained_vocab_size

    @cached_property
    def pad_token_id(self) -> int:
        """Return the id that fills up a batch."""
        return self._get_special_id("pad")

    @cached_property
    def eos_token_id(self) -> int:
        """Return the id that ends a sequence, -1 if there is none."""
        return self._get_special_id("eos")

    def _get_special_id(self, kind: str) -> int:
        if self.tokenizer_name:
            token_id = getattr(self.tokenizer, f"{kind}_token_id")
        else:
            token_id = tokenizers.special_token_id(self.architecture, kind)
        return -1 if token_id is None else token_id

    def find_split(self, split: str) -> Path:
        """Find the file of a split below DATA_DIR; UserError if there is none."""
        raise NotImplementedError

    def read_split(self, split: str) -> Sequence[Example]:
        """Read the examples of `train` or `dev`; UserError for a missing or wrong file."""
        raise NotImplementedError

    @cached_property
    def train_examples(self) -> Sequence[Example]:
        """Read the training examples once."""
        return self.read_split("train")

    def list_training_texts(self) -> list[str]:
        """List the texts to train a tokenizer on."""
        pairs = ((example.text, example.pair) for example in self.train_examples)
        return [text for pair in pairs for text in pair if text is not None]

    def list_names(self) -> Mapping[str, Sequence[str]]:
        """Return the names of the classes, and the tokens of a tokenizer that is trained."""
        ids = {} if self.tokenizer_name else self.tokenizer.get_vocab()
        return {"classes": self.label_names, "tokens": sorted(ids, key=ids.__getitem__)}

    def load_splits(self, split: str) -> dict[str, Dataset[Any]]:
        """Read and encode a split; with protocol `test`, val and test are one."""
        if split == "test" or (split == "val" and self.protocol == "test"):
            names = ("test", "val") if self.protocol == "test" else ("test",)
            return dict.fromkeys(names, self.encode(self.read_split("dev")))
        examples = self.train_examples
        if self.protocol == "validation":
            indices = datamodule.split_stratified(
                self._list_strata(examples), self.val_fraction, self.seed
            )
            examples = [examples[i] for i in indices[split == "val"]]
        return {split: self.encode(examples)}

    def _list_strata(self, examples: Sequence[Example]) -> np.ndarray:
        if self.num_labels == 1:  # numbers have no classes
            return np.zeros(len(examples), dtype=int)
        return np.array([example.target for example in examples])

    def encode(self, examples: Sequence[Example]) -> Any:
        """Encode examples as token ids."""
        return self.encode_examples(examples, self.tokenizer, self.max_length)

    @property
    def collate(self) -> Any:
        """Make batches of items."""
        return partial(self.collate_items, self.tokenizer.pad_token_id)

    def describe_inputs(self, batch: Any) -> list[str]:
        """Return the text of each sample as the network reads it, with special tokens."""
        ids, mask, *_ = batch
        texts = [self.tokenizer.decode(row[valid]) for row, valid in zip(ids, mask, strict=True)]
        count = len(texts) // len(self.list_targets(batch))  # 2 where a sample is a pair of rows
        return [" | ".join(texts[i : i + count]) for i in range(0, len(texts), count)]

    def list_targets(self, batch: Any) -> list[Any]:
        """Return the label or the number of each sample."""
        return batch[min(3, len(batch) - 1)].tolist()

    def count_fields(self) -> int:
        """Return how many texts a sample has."""
        return 1 if self.train_examples[0].pair is None else 2

    def read_files(self, files: Sequence[Path]) -> tuple[list[str], Any]:
        """Read a sample from each line that is not blank; tabs separate its texts."""
        if not self.has_answers:
            return super().read_files(files)
        count, names, examples = self.count_fields(), [], []
        for path in files:
            for number, line in enumerate(read_samples(path), 1):
                if not line.strip():
                    continue
                fields = [field.strip() for field in (line.split("\t") if count > 1 else [line])]
                if len(fields) != count or not all(fields):
                    text = f"{self.dataset_name} takes {count} texts in a line, with a tab between"
                    raise UserError(f"{path}, line {number}: {text}, not {len(fields)}")
                *first, last = fields
                names.append(line)
                text, pair = (SEPARATOR.join(first), last) if first else (last, None)
                examples.append(Example(text, pair, 0))
        if not examples:
            raise UserError(f"{files[0]} has no text")
        return names, self.encode(examples)
