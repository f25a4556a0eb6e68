"""The base of all speech data sets: utterances in splits, batched by padded seconds."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from experiment_kit.data.datamodule import SplitDataModule, check_at_least, check_one_of
from experiment_kit.errors import UserError
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from attention_speech import audio
from attention_speech.data.bucketing import bucketed_loader, sorted_loader
from attention_speech.features import HOP
from attention_speech.models.recognizer import MAX_STATES
from attention_speech.tokenizer import PUBLISHED, Tokenizer, find_published, train_tokenizer

SUBFOLDERS = ("", "speech/")  # data sets are searched here, below DATA_DIR
_STATES_PER_SECOND = 25  # front ends turn four frames of 10 ms into one state
GAP_SECONDS = 0.1  # silence between two files of an utterance


class SpeechBatch(NamedTuple):
    """B utterances, padded with 0 to T samples and U tokens."""

    waves: Tensor  # (B, T), at 16 kHz
    lengths: Tensor  # (B,)
    tokens: Tensor  # (B, U)
    token_lengths: Tensor  # (B,)
    texts: list[str]
    names: list[str]

    def first(self, count: int) -> "SpeechBatch":
        """Return the first utterances, padded as before."""
        fields: Any = (field[:count] for field in self)
        return SpeechBatch(*fields)


def collate_speech(tokenizer: Any, items: Sequence[tuple[Tensor, str, str]]) -> SpeechBatch:
    """Pad items (wave, text, name) to a batch, and encode their texts."""
    waves, texts, names = zip(*items, strict=True)
    tokens = [torch.tensor(tokenizer.encode(text), dtype=torch.int64) for text in texts]
    return SpeechBatch(
        pad_sequence(list(waves), batch_first=True),
        torch.tensor([len(wave) for wave in waves]),
        pad_sequence(tokens, batch_first=True),
        torch.tensor([len(ids) for ids in tokens]),
        list(texts),
        list(names),
    )


class Recordings(Dataset[tuple[Tensor, str, str]]):
    """The waves of utterances at 16 kHz, each time at a speed drawn from `speeds`.

    Speed s turns T samples into T / s samples, and raises the pitch by the factor s.

    Source: https://www.danielpovey.com/files/2015_interspeech_augmentation.pdf
    """

    def __init__(self, utterances: Sequence[audio.Utterance], speeds: Sequence[float] = ()) -> None:
        self.utterances, self.speeds = utterances, tuple(speeds)
        self._cache: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self.utterances)

    def __getitem__(self, index: int) -> tuple[Tensor, str, str]:
        utterance = self.utterances[index]
        if len(utterance.path) == 1:
            wave = audio.load_audio(utterance.path[0])
        else:  # many utterances share these files, which take a few megabytes: load them once
            for path in utterance.path:
                if path not in self._cache:
                    self._cache[path] = audio.load_audio(path)
            wave = join_waves([self._cache[path] for path in utterance.path])
        if self.speeds:
            wave = change_speed(wave, self.speeds[int(torch.randint(len(self.speeds), ()))])
        return wave, utterance.text, utterance.name


def join_waves(waves: Sequence[Tensor]) -> Tensor:
    """Concatenate waves (T,) with silence between them."""
    silence = waves[0].new_zeros(round(GAP_SECONDS * audio.SAMPLE_RATE))
    pieces = [piece for wave in waves for piece in (silence, wave)]
    return torch.cat(pieces[1:])


def check_seconds(utterances: Iterable[audio.Utterance], frames_per_state: int = 4) -> None:
    """Raise UserError for an utterance of more states than a network has positions."""
    limit = MAX_STATES * frames_per_state * HOP / audio.SAMPLE_RATE
    longest = max(utterances, key=lambda one: one.seconds)
    if longest.seconds >= limit:
        text = f"{longest.seconds:.0f} s of speech, and the network reads less than {limit:g} s"
        raise UserError(f"{longest.name}: {text}: split it")


def change_speed(wave: Tensor, factor: float) -> Tensor:
    """Play a wave (..., T) `factor` times as fast."""
    from torchaudio.functional import speed

    return speed(wave, audio.SAMPLE_RATE, factor)[0]


class SpeechData(SplitDataModule):
    """Waves at 16 kHz and their transcripts; a batch is a `SpeechBatch` of similar lengths.

    Skipped and converted utterances are counted once on standard error. Protocol `validation`
    selects the epoch on the validation split and scores the test splits once. Protocol `test`
    selects the epoch on the first test split, which gives an upper bound.

    `vocab_size` and `tokenizer_file` are linked to the model's arguments of the same names.
    `test_splits` names the splits of `test_dataloader`.

    Args:
        batch_seconds: Seconds of a batch at most, with padding.
        max_batch_size: Utterances of a batch at most.
        speeds: Speeds of which training draws one for each utterance.
        num_tokens: Tokens at most.
        token_type: Tokens of the tokenizer, which is trained on the training transcripts alone.
        tokenizer: File of a tokenizer; "published" is speechbrain's of all 960 hours, in DATA_DIR;
            null trains one.
        max_seconds: Seconds above which utterances are skipped in training, but tested.
    """

    test_splits: tuple[str, ...] = ("test",)

    def __init__(
        self,
        dataset_name: str,
        data_dir: str | None = None,
        *,
        batch_seconds: float = 120.0,
        max_batch_size: int = 128,
        speeds: tuple[float, ...] = (),
        num_tokens: int = 5000,
        token_type: Literal["unigram", "char"] = "unigram",
        tokenizer: str | None = None,
        max_seconds: float = 30.0,
        **kwargs: Any,
    ) -> None:
        check_one_of("token_type", token_type, ("unigram", "char"))
        check_at_least(1, max_batch_size=max_batch_size)
        check_at_least(5, num_tokens=num_tokens)
        if not all(0.5 <= factor <= 2 for factor in speeds):
            raise ValueError(f"data.speeds must be factors from 0.5 to 2, got {speeds}")
        longest = max_seconds / min(speeds, default=1)
        if not 0 < longest <= batch_seconds:
            raise ValueError(
                f"data.batch_seconds must be at least {longest:g}, which is max_seconds at the "
                f"slowest of data.speeds, and both must be above 0; got {batch_seconds:g}"
            )
        super().__init__(
            dataset_name, data_dir, val_fraction=0.1, batch_size=max_batch_size, **kwargs
        )
        self.batch_seconds, self.max_seconds = batch_seconds, max_seconds
        self.speeds = tuple(speeds)
        self.num_tokens, self.token_type = num_tokens, token_type
        self.given_tokenizer = tokenizer

    def read_utterances(self) -> dict[str, list[audio.Utterance]]:
        """Return the utterances of train, val and `test_splits`; raises UserError for bad files."""
        raise NotImplementedError

    @cached_property
    def utterances(self) -> dict[str, list[audio.Utterance]]:
        """The splits in use: train without long utterances, val as the protocol says."""
        splits = self.read_utterances()
        if long := [one.name for one in splits["train"] if one.seconds > self.max_seconds]:
            kind = f"more than {self.max_seconds:g} s"
            self.print_note(f"{audio.describe_utterances(kind, long)}: not trained on")
            splits["train"] = [one for one in splits["train"] if one.seconds <= self.max_seconds]
        if self.protocol == "test":
            splits["val"] = splits[self.test_splits[0]]
        if empty := [split for split in splits if not splits[split]]:
            raise UserError(f"{self.dataset_name} has no utterance to use in {', '.join(empty)}")
        return splits

    @cached_property
    def tokenizer_file(self) -> str:
        """The file of the tokenizer, which is trained if none is given and there is none yet."""
        if self.given_tokenizer == PUBLISHED:
            return str(find_published("tokenizer.ckpt", self.data_dir))
        if self.given_tokenizer:
            return self.given_tokenizer
        texts = [one.text for one in self.utterances["train"]]
        return str(train_tokenizer(texts, self.num_tokens, self.token_type))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, by default of the training transcripts."""
        return Tokenizer(self.tokenizer_file)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, including the special ones."""
        return self.tokenizer.vocab_size

    @property
    def collate(self) -> Any:
        """The function that pads items to a batch."""
        return partial(collate_speech, self.tokenizer)

    def setup(self, stage: str) -> None:
        """Read all splits, once."""
        if self.splits:
            return
        for split, utterances in self.utterances.items():
            speeds = self.speeds if split == "train" else ()
            self.splits[split] = Recordings(utterances, speeds)
            self._note_hard_texts(split, utterances)

    def _note_hard_texts(self, split: str, utterances: list[audio.Utterance]) -> None:
        """Count texts with unknown characters, and texts too long for CTC."""
        unknown, crowded = [], []
        for one in utterances:
            ids = self.tokenizer.encode(one.text)
            unknown += [one.name] * self.tokenizer.has_unknown(one.text)
            # CTC needs a blank between equal neighbors
            num_states = len(ids) + sum(a == b for a, b in pairwise(ids))
            crowded += [one.name] * (num_states > _STATES_PER_SECOND * one.seconds)
        limit = f"more tokens than CTC aligns at {_STATES_PER_SECOND} a second"
        for kind, names in {"a token outside of the vocabulary": unknown, limit: crowded}.items():
            if names:
                self.print_note(f"{split}: {audio.describe_utterances(kind, names)}")

    def use_manifests(self, manifests: Mapping[str, audio.Manifest]) -> list[audio.Utterance]:
        """Print the notes of manifests, by name, and return all their utterances."""
        for name, manifest in manifests.items():
            for note in manifest.notes:
                self.print_note(f"{name}: {note}" if name else note)
        return [one for manifest in manifests.values() for one in manifest.utterances]

    def print_note(self, note: str) -> None:
        """Print a note on standard error."""
        print(f"note: {self.dataset_name}: {note}", file=sys.stderr)

    def train_loader(self, split: str, **options: Any) -> DataLoader[Any]:
        """Load batches of a split in an order that depends on seed and epoch alone."""
        recordings = self.splits[split]
        slowest = min(recordings.speeds, default=1)
        # changed speeds round to whole samples: no wave is longer than this
        lengths = [math.ceil(100 * one.seconds / slowest) / 100 for one in recordings.utterances]
        options = {**self.loader_options(), **options}
        order = self.seed, self.trainer, self.batch_size
        return bucketed_loader(recordings, lengths, self.batch_seconds, *order, **options)

    def eval_loader(self, split: str) -> DataLoader[Any]:
        """Load batches of a split from its shortest utterance to its longest."""
        lengths = [one.seconds for one in self.splits[split].utterances]
        limits = self.batch_seconds, self.batch_size
        return sorted_loader(self.splits[split], lengths, *limits, **self.loader_options())

    def test_dataloader(self) -> Any:
        """Load the test splits: one loader, or a list."""
        loaders = [self.eval_loader(split) for split in self.test_splits]
        return loaders if len(loaders) > 1 else loaders[0]

    def describe_inputs(self, batch: Any) -> list[str]:
        """Return the name of each utterance."""
        return [*batch.names]

    def list_targets(self, batch: Any) -> list[str]:
        """Return the transcripts."""
        return [*batch.texts]

    def read_files(self, files: Sequence[Path]) -> tuple[list[str], Recordings]:
        """Read recordings below 100 s; count those that are resampled or averaged."""
        names = [str(path) for path in files]
        infos = {name: audio.probe_audio(name) for name in names}
        for kind, converted in audio.group_conversions(infos).items():
            self.print_note(audio.describe_utterances(kind, converted))
        rows = [audio.Utterance(name, (name,), infos[name].seconds, "", "") for name in names]
        check_seconds(rows)
        return names, Recordings(rows)

    def predict_dataloader(self) -> Any:
        """Load the test splits again."""
        return self.test_dataloader()
