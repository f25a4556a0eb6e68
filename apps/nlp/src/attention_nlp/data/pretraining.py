"""Masked sequences of 128 tokens, packed from documents, for pre-training as in Crammed BERT."""

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

from experiment_kit.data.loader import epoch_loader, overfits
from experiment_kit.errors import UserError
from tokenizers import Regex, normalizers
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast

from attention_nlp import vocabulary as trained
from attention_nlp.data import sources
from attention_nlp.data.base import TOKENIZERS, LanguageData
from attention_nlp.data.masking import Chapters, Masked, batch
from attention_nlp.data.packing import Packed, Plan, dtype, key, pack
from attention_nlp.data.sources import Source
from attention_nlp.models import checkpoint

TOKENS = Path("runs/tokens")
_SAMPLE = 200_000  # documents that the tokenizer is trained on, of a source that has more
_PARTS = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("test",)}


class Pretraining(LanguageData):
    """Sequences with a share of their words masked, of which the network says what they were.

    `text_files` reads the folder `files` of DATA_DIR, `pile` streams a copy of the Pile from the
    hub, `python_docs` takes what ships with Python. The documents are tokenised once, into a cache
    under a hash of their content, and read from there: a resumed run continues with the very
    batch. The order of the sequences is drawn anew each time round.

    `limit` is the most sequences to train on, `epoch` how many make an epoch (else all), at whose
    end there are a validation and a checkpoint. `ascii` has the tokenizer drop what an English
    keyboard lacks, `trash` leaves documents out that have more tokens than that a character. A
    `share` of the documents is held out, half to choose the epoch and half to be scored once;
    protocol `test` chooses on the latter.

    >>> Pretraining("python_docs", max_length=32).vocab_size
    32768
    """

    num_labels = 0
    known: ClassVar[Mapping[str, Any]] = dict.fromkeys(("text_files", "pile", "python_docs"))

    def __init__(
        self,
        name: Literal["text_files", "pile", "python_docs"],
        data_dir: str | None = None,
        protocol: Literal["validation", "test"] = "validation",
        share: float = 0.01,
        architecture: str = "crammed",
        weights: str | None = None,
        tokenizer: str | None = None,
        vocabulary: int = 32768,
        max_length: int = 128,
        batch_size: int = 128,
        num_workers: int = 0,
        seed: int = 0,
        files: str = "texts",
        hub: str = "monology/pile-uncopyrighted",
        revision: str | None = None,
        masked: float = 0.25,
        ascii: bool = True,
        trash: float | None = 0.25,
        limit: int | None = None,
        epoch: int | None = None,
    ) -> None:
        super().__init__(
            name, data_dir, protocol, share, architecture, weights, tokenizer, vocabulary,
            max_length, batch_size, num_workers, seed,
        )  # fmt: skip
        if round(masked * max_length) not in range(1, max_length + 1):
            raise ValueError(f"data.masked must be a share of {max_length} words, got {masked}")
        for argument, value in {"limit": limit, "epoch": epoch}.items():
            if value is not None and value < 1:
                raise ValueError(f"data.{argument} must be at least 1, or null, got {value}")
        if share > 0.5:
            raise ValueError(f"data.share, held out of training, must be at most 0.5, got {share}")
        self.masked, self.ascii, self.epoch = masked, ascii, epoch
        self.files, self.hub, self.revision = files, hub, revision
        self.plan = Plan(max_length, share, trash, limit)

    @staticmethod
    def whereabouts(name: str) -> Path:
        """Where documents lie, or are kept once read; raises UserError where none can be had."""
        if name == "text_files":
            return Pretraining("text_files")._files()
        if name == "pile" and find_spec("datasets") is None:
            raise UserError("the Pile is streamed from the hub: pip install 'attention-nlp[hub]'")
        return TOKENS

    @cached_property
    def source(self) -> Source:
        """Where the documents are; raises UserError where they are not."""
        make: dict[str, Callable[[], Source]] = {
            "text_files": lambda: sources.folder(self._files()),
            "pile": lambda: sources.hub(self.hub, self.revision),
            "python_docs": sources.python_docs,
        }
        return make[self.problem]()

    def _files(self) -> Path:
        if self.folder is None:
            raise UserError(f"no {self.files}: set DATA_DIR to the folder that holds it")
        if not (self.folder / self.files).is_dir():
            raise UserError(f"no folder {self.files} (data.files) in DATA_DIR {self.folder}")
        return self.folder / self.files

    @cached_property
    def identity(self) -> list[str]:
        """What says which documents they are."""
        return self.source.identity()

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """That of the weights, or one trained on the documents."""
        if name := self.named or self.weights:
            return trained.pretrained(name)
        documents = islice(self.source.documents(), _SAMPLE)
        cleaned = (sources.ascii_only(text) if self.ascii else text for text in documents)
        identity = [*self.identity, str(self.ascii)]
        made = trained.cached(TOKENIZERS, self.architecture, cleaned, self.vocabulary, identity)
        if self.ascii:  # for the texts of fine-tuning, too
            backend = made.backend_tokenizer
            drop = normalizers.Replace(Regex(r"[^\x00-\x7F]+"), "")
            backend.normalizer = normalizers.Sequence([backend.normalizer, drop])
        return made

    def state_dict(self) -> dict[str, str]:
        """The tokenizer and the vocabulary, so that a checkpoint is all that fine-tuning needs."""
        return {checkpoint.TOKENIZER: checkpoint.packed(self.tokenizer, self.vocab_size)}

    def tokens(self) -> Path:
        """The folder of the packed sequences, which are made where they are not there yet."""
        backend = self.tokenizer.backend_tokenizer.to_str()
        place = TOKENS / key(*self.identity, backend, *self.plan)
        if not place.is_dir():
            pack(self.source.documents(), self.tokenizer, self.plan, place)
        return place

    def prepare_data(self) -> None:
        """Pack, in one process before the others."""
        self.tokens()

    def setup(self, stage: str) -> None:
        """Open the parts that a stage needs."""
        tokenizer = self.tokenizer
        if None in (tokenizer.mask_token_id, tokenizer.sep_token_id):
            raise UserError(f"the tokenizer of {self.architecture} has no mask or no separator")
        place = self.tokens()
        for name in _PARTS[stage]:
            file = "test" if self.protocol == "test" and name == "val" else name
            rows = Packed(place / file, self.max_length, dtype(tokenizer))
            seed = None if name == "train" else 0  # what is scored is masked always alike
            words, mask = len(tokenizer), tokenizer.mask_token_id
            self.parts[name] = Masked(rows, mask, words, self.masked, seed)

    @property
    def collate(self) -> Any:
        """What makes a batch of items."""
        return batch

    def _options(self) -> dict[str, Any]:
        # new workers each epoch, which then know which epoch it is
        return super()._options() | {"persistent_workers": False}

    def train_dataloader(self) -> DataLoader[Any]:
        """Whole batches, in an order that seed and epoch alone decide."""
        rows: Any = self.parts["train"]
        chapters = Chapters(rows, self.epoch or len(rows))
        loader = epoch_loader(
            chapters, self.batch_size, self.seed, self.trainer, drop_last=True, **self._options()
        )
        if not overfits(self.trainer):  # which stays in the first chapter
            chapters.sampler = loader.sampler
        return loader
