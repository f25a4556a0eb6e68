"""What every data set of this app has in common: its parts, its protocols, its loaders."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from experiment_kit.data.local import data_folder
from experiment_kit.data.parts import PartsData
from experiment_kit.data.split import stratified
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from attention_nlp import vocabulary
from attention_nlp.data.encoding import Collate, Encoded, Example
from attention_nlp.models import checkpoint

TOKENIZERS = Path("runs/tokenizers")
# to fit, all: a wrong file is told of before training, not after it
_NEEDED = {
    "fit": ("train", "val", "test"),
    "validate": ("val",),
    "test": ("test",),
    "predict": ("test",),
}


class LanguageData(PartsData):
    """Texts as a batch of ids, mask, types and targets, of a data set that a subclass reads.

    `num_labels`, `vocab_size`, `max_length`, `pad` and `eos` are linked to the model's arguments;
    `architecture` and `weights` are the model's. The tokenizer is that of the weights; where they
    are random it is trained on the training texts, to a `vocabulary` of that many tokens.

    Protocol `validation` holds a stratified `share` of the training texts back to choose the
    epoch, and scores the official development set once: the labels of the benchmarks' test sets
    are not public. Protocol `test` is the papers': training on all, the development set scored
    after each epoch; the result at its best epoch is an upper bound, that of the last epoch is
    what the released code reports.

    Raises ValueError for an argument out of its range.
    """

    num_labels: int
    known: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        name: str,
        data_dir: str | None = None,
        protocol: Literal["validation", "test"] = "validation",
        share: float = 0.1,
        architecture: str = "bert",
        weights: str | None = None,
        tokenizer: str | None = None,
        vocabulary: int = 8192,
        max_length: int = 128,
        batch_size: int = 32,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if name not in self.known:
            raise ValueError(f"data.name must be one of {', '.join(self.known)}, got {name!r}")
        if not 0 < share < 1:
            raise ValueError(f"data.share, held out of training, must be in (0, 1), got {share}")
        for key, value in {"batch_size": batch_size, "max_length": max_length}.items():
            if value < 1:
                raise ValueError(f"data.{key} must be at least 1, got {value}")
        self.save_hyperparameters()
        self.problem, self.data_dir, self.protocol = name, data_dir, protocol
        self.share, self.seed, self.max_length = share, seed, max_length
        self.batch_size, self.num_workers = batch_size, num_workers
        self.architecture, self.weights = architecture, weights
        self.named, self.vocabulary = tokenizer, vocabulary
        self.parts: dict[str, Dataset[Any]] = {}

    @property
    def folder(self) -> Path | None:
        """The folder of local data, if there is one."""
        return data_folder(self.data_dir)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """That of the weights, or one trained on the training texts."""
        if name := self.named or self.weights:
            return vocabulary.pretrained(name)
        texts = self.training_texts()
        return vocabulary.cached(TOKENIZERS, self.architecture, texts, self.vocabulary, texts)

    @property
    def pretrained(self) -> bool:
        """Whether the tokenizer is there without reading the data."""
        return bool(self.named or self.weights)

    @cached_property
    def vocab_size(self) -> int:
        """How many token ids there are; known before a file is read."""
        if self.weights and self.weights.endswith(".ckpt"):
            return checkpoint.vocabulary(self.weights)
        return len(self.tokenizer) if self.pretrained else self.vocabulary

    @cached_property
    def pad(self) -> int:
        """The id that fills up a batch."""
        return self._special("pad")

    @cached_property
    def eos(self) -> int:
        """The id that ends a sequence, -1 where there is none."""
        return self._special("eos")

    def _special(self, kind: str) -> int:
        if self.pretrained:
            found = getattr(self.tokenizer, f"{kind}_token_id")
        else:
            found = vocabulary.special_id(self.architecture, kind)
        return -1 if found is None else found

    def read(self, split: str) -> Sequence[Example]:
        """The examples of a split; raises UserError where they are not right."""
        raise NotImplementedError

    @cached_property
    def train_examples(self) -> Sequence[Example]:
        """What was read, once."""
        return self.read("train")

    def training_texts(self) -> list[str]:
        """What a tokenizer is trained on."""
        pairs = ((example.text, example.pair) for example in self.train_examples)
        return [text for pair in pairs for text in pair if text is not None]

    def setup(self, stage: str) -> None:
        """Make the parts that a stage needs."""
        for name in _NEEDED[stage]:
            if name not in self.parts:
                self._make(name)

    def _make(self, name: str) -> None:
        if name == "test" or (name == "val" and self.protocol == "test"):
            both = ("test", "val") if self.protocol == "test" else ("test",)
            self.parts |= dict.fromkeys(both, self.encode(self.read("dev")))
            return
        examples, kept = self.train_examples, None
        if self.protocol == "validation":
            kept = stratified(self._strata(examples), self.share, self.seed)
            examples = [examples[i] for i in kept[name == "val"]]
        self.parts[name] = self.encode(examples)

    def _strata(self, examples: Sequence[Example]) -> np.ndarray:
        # numbers have no classes to keep the shares of
        if self.num_labels == 1:
            return np.zeros(len(examples), dtype=int)
        return np.array([example.target for example in examples])

    def encode(self, examples: Sequence[Example]) -> Dataset[Any]:
        """Examples as token ids."""
        return Encoded(examples, self.tokenizer, self.max_length)

    @property
    def collate(self) -> Any:
        """What makes a batch of items."""
        return Collate(self.tokenizer.pad_token_id)
