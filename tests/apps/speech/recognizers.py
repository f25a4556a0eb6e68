"""Tiny recognizers, and three utterances in which each letter has a pitch of its own."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from attention_speech.data.base import SpeechBatch, collate_speech
from attention_speech.decoding import BeamSearchConfig
from attention_speech.features import FbankConfig, SpecAugment
from attention_speech.models.recognizer import RecognizerConfig
from attention_speech.module import SpeechRecognizer
from attention_speech.tokenizer import Tokenizer
from experiment_kit.training.lightning_patches import AtomicCheckpointIO, BestCheckpoint
from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import DataLoader

from tests.kit import trainers

ENCODERS = "transformer", "branchformer"
TEXTS = ["ONE TWO", "NINE", "TWO ZERO ONE"]
SMALL = {"dim": 8, "num_heads": 2, "num_encoder_layers": 3, "num_decoder_layers": 2,
         "ffn_dim": 10, "csgu_dim": 12, "csgu_kernel": 7}  # fmt: skip
ONE_BLOCK = {"channels": (4,), "kernels": (3,), "strides": (4,), "residuals": (False,)}


def make_config(encoder: Any = "transformer", **changed: Any) -> RecognizerConfig:
    return RecognizerConfig(encoder, **(SMALL | {"channels": (3, 4, 2)} | changed))


def make_module(tokenizer_file: str, encoder=ENCODERS[0], **options: Any) -> SpeechRecognizer:
    settings: dict[str, Any] = {
        "network": make_config(encoder, dropout=0.0, **ONE_BLOCK),
        "fbank": FbankConfig(n_mels=12),
        "spec_augment": SpecAugment(0, 0, 0, 0, 0),
        "beam_search": BeamSearchConfig(beam_size=3),
    }
    vocab_size = Tokenizer(tokenizer_file).vocab_size
    return SpeechRecognizer(vocab_size, tokenizer_file, **(settings | options))


def make_items() -> list[tuple[torch.Tensor, str, str]]:
    items = []
    for number, text in enumerate(TEXTS):
        t = torch.arange(800) / 16000
        waves = [torch.sin(2000 * (1 + ord(letter) % 32) * t) for letter in text]
        items.append((torch.cat(waves), text, f"utterance-{number}"))
    return items


def make_batch(tokenizer_file: str) -> SpeechBatch:
    return collate_speech(Tokenizer(tokenizer_file), make_items())


class Utterances(LightningDataModule):
    """The same three utterances in all splits, and two sets of one behind them to score."""

    test_splits = ("test", "other", "far")

    def __init__(self, tokenizer_file: str) -> None:
        super().__init__()
        self.collate = partial(collate_speech, Tokenizer(tokenizer_file))

    def _load(self, count: int = 3) -> DataLoader[Any]:
        return DataLoader(make_items()[:count], batch_size=2, collate_fn=self.collate)

    train_dataloader = _load

    def test_dataloader(self) -> list[DataLoader[Any]]:
        return [self._load(), self._load(1), self._load(1)]

    val_dataloader = test_dataloader


def make_trainer(folder: Path, **options: Any) -> Trainer:
    callbacks = [*options.pop("callbacks", ()), BestCheckpoint(folder / "checkpoints", "val/score")]
    settings = {"default_root_dir": folder, "max_epochs": 3, "enable_checkpointing": True} | options
    return trainers.make_trainer(*callbacks, plugins=[AtomicCheckpointIO()], **settings)
