"""Masked sequences packed from documents, for pre-training as in Crammed BERT."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal

from experiment_kit.data.datamodule import SplitDataModule, check_at_least
from experiment_kit.data.folders import list_visible_files
from experiment_kit.data.loaders import build_train_loader, is_overfitting
from experiment_kit.errors import UserError
from experiment_kit.run_files import warn_once
from tokenizers import Regex, normalizers
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerFast

from attention_nlp import tokenizer as tokenizers
from attention_nlp.data import packing
from attention_nlp.data.base import TOKENIZERS, LanguageData
from attention_nlp.data.docs import list_sentences
from attention_nlp.data.files import read_lines, read_table
from attention_nlp.models import checkpoints

TOKENS = Path("runs/tokens")
_TOKENIZER_DOCUMENTS = 200_000  # at most, to train the tokenizer on
_SENTENCES_PER_DOCUMENT = 16  # in Python's documentation


def list_text_files(folder: Path) -> list[Path]:
    """List the `.txt` and `.jsonl` files below a folder, which are one text; UserError for none."""
    if not (found := list_visible_files(folder, ".txt", ".jsonl")):
        raise UserError(f"no .txt or .jsonl file in {folder}")
    words = set(re.split(r"\W|_", " ".join(str(p.relative_to(folder)) for p in found).lower()))
    if "train" in words and (held := words & {"val", "valid", "validation", "dev", "test"}):
        text = f"{folder} has files of train and of {', '.join(sorted(held))}: all are one text"
        warn_once(f"{text}, of which data.val_fraction is held out: move others than train")
    return found


def hash_text_files(folder: Path) -> list[str]:
    """Return the name and the hash of each file, to identify their content."""
    found = []
    for path in list_text_files(folder):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        found.append(f"{path.relative_to(folder)} {digest}")
    return found


def read_text_files(folder: Path) -> Iterator[str]:
    """Read the documents of all text files below a folder, in the order of their names.

    Empty lines separate the documents of a text; a line of JSON holds a document under `text`.
    """
    paths = list_text_files(folder)
    if others := len(list_visible_files(folder, "")) - len(paths):
        warn_once(f"files in {folder} that are neither .txt nor .jsonl, and not read: {others}")
    for path in paths:
        if path.suffix.lower() == ".txt":
            for is_blank, lines in groupby(read_lines(path), lambda line: not line.strip()):
                if not is_blank:
                    yield "\n".join(lines)
        else:
            for number, row in enumerate(read_table(path), 1):
                if not isinstance(row.get("text"), str):
                    raise UserError(f'{path}, row {number}: no JSON object with a text "text"')
                yield row["text"]


def stream_hub(name: str, revision: str | None = None) -> Iterator[str]:
    """Stream the documents under `text` of a data set on the hub."""
    from datasets import load_dataset  # here, since it takes seconds

    try:
        for row in load_dataset(name, split="train", streaming=True, revision=revision):
            yield row["text"]
    except Exception as error:  # the client raises errors of many kinds without a network
        text = f"the hub does not give texts of {name} ({type(error).__name__}): use local"
        raise UserError(f"{text} files (data: text_files)") from error


def strip_non_ascii(text: str) -> str:
    """Strip accents and all characters that an English keyboard does not have."""
    return unicodedata.normalize("NFD", text).encode("ascii", "ignore").decode()


class _TokenizerTexts:
    """The texts that a tokenizer is trained on, read from the documents at each iteration."""

    def __init__(self, data: "Pretraining") -> None:
        self.data = data

    def __iter__(self) -> Iterator[str]:
        texts: Iterator[str] = islice(self.data.read_documents(), _TOKENIZER_DOCUMENTS)
        return map(strip_non_ascii, texts) if self.data.ascii else texts


class Pretraining(LanguageData):
    """Packed sequences in which a fraction of the words is masked, to be predicted.

    `text_files` reads a folder of DATA_DIR, `pile` streams a copy of the Pile from the hub,
    `python_docs` uses the documentation that ships with Python. The documents are tokenized once,
    into a cache under a hash of their content. Each pass over the sequences has another order. A
    resumed run continues with the next batch. `val_fraction` of the documents is held out: one half
    selects the epoch, the other half is scored once; with protocol `test` the latter does both.

    Args:
        text_dir: Folder of `text_files` in DATA_DIR.
        hub: Repository of `pile`.
        revision: Commit of the repository; null is the newest.
        mask_fraction: Fraction of the words that are predicted.
        ascii: Drop characters that an English keyboard lacks.
        max_tokens_per_char: Leave out documents with more tokens; null is none.
        max_sequences: Training sequences at most; null is all.
        epoch_sequences: Sequences of an epoch, which ends with a validation and a checkpoint; null
            is all.
        max_documents: Documents that are read at most; null is all.
        curriculum: `sentence-length` takes the sequences with most periods, and so the shortest
            sentences, first; null is a random order.
    """

    num_labels = 0
    has_answers = False
    DATASETS = ("text_files", "pile", "python_docs")
    STAGES = SplitDataModule.STAGES
    collate = staticmethod(packing.stack_sequences)

    def __init__(
        self,
        dataset_name: Literal["text_files", "pile", "python_docs"],
        data_dir: str | None = None,
        val_fraction: float = 0.01,
        architecture: str = "crammed",
        vocab_size: int = 32768,
        max_length: int = 128,
        batch_size: int = 128,
        text_dir: str = "texts",
        hub: str = "monology/pile-uncopyrighted",
        revision: str | None = None,
        mask_fraction: float = 0.25,
        ascii: bool = True,
        max_tokens_per_char: float | None = 0.25,
        max_sequences: int | None = None,
        epoch_sequences: int | None = None,
        max_documents: int | None = None,
        curriculum: Literal["sentence-length"] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            dataset_name,
            data_dir,
            architecture=architecture,
            vocab_size=vocab_size,
            max_length=max_length,
            val_fraction=val_fraction,
            batch_size=batch_size,
            **kwargs,
        )
        if round(mask_fraction * max_length) not in range(1, max_length + 1):
            text = "data.mask_fraction must be a"
            raise ValueError(f"{text} fraction of {max_length} words, got {mask_fraction}")
        check_at_least(1, max_sequences=max_sequences, epoch_sequences=epoch_sequences)
        check_at_least(1, max_documents=max_documents)
        if val_fraction > 0.5:
            text = "data.val_fraction, held out of"
            raise ValueError(f"{text} training, must be at most 0.5, got {val_fraction}")
        self.mask_fraction, self.ascii, self.epoch_sequences = mask_fraction, ascii, epoch_sequences
        self.text_dir, self.hub, self.revision = text_dir, hub, revision
        self.max_documents, self.curriculum = max_documents, curriculum
        self.plan = packing.PackingPlan(
            max_length, val_fraction, max_tokens_per_char, max_sequences
        )

    @classmethod
    def find_data(cls, dataset_name: str, data_dir: str | None = None) -> Path:
        """Find the folder of the documents, or of their cache; UserError if there are none."""
        if dataset_name == "text_files":
            return cls("text_files", data_dir).find_texts()
        return TOKENS

    def list_data_files(self) -> Sequence[Path]:
        """Return the folder of the texts; the hub and Python have no file of the data."""
        return [self.find_texts()] if self.dataset_name == "text_files" else ()

    def find_texts(self) -> Path:
        """Find the folder `text_dir`; UserError if it is not in DATA_DIR."""
        folder = self.require_folder(self.text_dir)
        if not (folder / self.text_dir).is_dir():
            raise UserError(f"no folder {self.text_dir} (data.text_dir) in DATA_DIR {folder}")
        return folder / self.text_dir

    @cached_property
    def content(self) -> list[str]:
        """Identify the documents, as the key of caches."""
        if self.dataset_name == "text_files":
            content = hash_text_files(self.find_texts())
        elif self.dataset_name == "pile":
            content = [self.hub, self.revision or ""]
        else:
            content = list(list_sentences())
        return content if self.max_documents is None else [*content, str(self.max_documents)]

    def read_documents(self) -> Iterator[str]:
        """Read the documents, at most `max_documents` of them."""
        if self.dataset_name == "text_files":
            texts = read_text_files(self.find_texts())
        elif self.dataset_name == "pile":
            texts = stream_hub(self.hub, self.revision)
        else:
            sentences, size = list_sentences(), _SENTENCES_PER_DOCUMENT
            starts = range(0, len(sentences), size)
            texts = (" ".join(sentences[i : i + size]) for i in starts)
        return islice(texts, self.max_documents)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Load the tokenizer of the weights, or train one on the documents."""
        if self.tokenizer_name:
            return tokenizers.load_tokenizer(self.tokenizer_name)
        key = [*self.content, str(self.ascii)]
        tokenizer = tokenizers.train_cached_tokenizer(
            TOKENIZERS, self.architecture, _TokenizerTexts(self), self.trained_vocab_size, key
        )
        if self.ascii:  # also in the texts of fine-tuning
            backend = tokenizer.backend_tokenizer
            drop = normalizers.Replace(Regex(r"[^\x00-\x7F]+"), "")
            backend.normalizer = normalizers.Sequence([backend.normalizer, drop])
        return tokenizer

    def state_dict(self) -> dict[str, str]:
        """Save the tokenizer and the vocabulary size: fine-tuning needs only the checkpoint."""
        return {
            checkpoints.TOKENIZER_KEY: checkpoints.dump_tokenizer(self.tokenizer, self.vocab_size)
        }

    def pack_tokens(self) -> Path:
        """Return the folder of the packed sequences, and make it if it is not there."""
        backend = self.tokenizer.backend_tokenizer.to_str()
        key = json.dumps([*self.content, backend, *self.plan])
        folder = TOKENS / hashlib.sha256(key.encode()).hexdigest()[:16]
        return packing.pack_documents(self.read_documents(), self.tokenizer, self.plan, folder)

    def prepare_data(self) -> None:
        """Pack the documents in one process, before the others."""
        self.pack_tokens()

    def load_splits(self, split: str) -> dict[str, Dataset[Any]]:
        """Open the packed sequences of a split."""
        tokenizer = self.tokenizer
        if None in (tokenizer.mask_token_id, tokenizer.sep_token_id):
            raise UserError(f"the tokenizer of {self.architecture} has no mask or no separator")
        file = "test" if self.protocol == "test" and split == "val" else split
        rows = packing.PackedSequences(
            self.pack_tokens() / file, self.max_length, packing.ids_dtype(tokenizer)
        )
        if self.curriculum and split == "train":
            rows = rows.sort_by_count(tokenizer.convert_tokens_to_ids("."))
        settings = tokenizer.mask_token_id, len(tokenizer), self.mask_fraction
        seed = None if split == "train" else 0  # val and test have the same masks in every epoch
        return {split: packing.MaskedSequences(rows, *settings, seed)}

    def loader_options(self) -> dict[str, Any]:
        """Start new workers each epoch, which then know the epoch."""
        return super().loader_options() | {"persistent_workers": False}

    def train_dataloader(self) -> DataLoader[Any]:
        """Load whole batches, in an order of seed and epoch."""
        rows, trainer = self.splits["train"], self.trainer
        slices = packing.EpochSlices(rows, self.epoch_sequences or len(rows))
        options = self.loader_options() | {"drop_last": True, "shuffle": self.curriculum is None}
        loader = build_train_loader(slices, self.batch_size, self.seed, trainer, **options)
        if not is_overfitting(trainer):  # which stays in the first epoch
            slices.sampler = loader.sampler
        return loader
