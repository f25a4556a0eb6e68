"""Training and scoring of a recogniser of speech, with the four slots of every mechanism."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from attention_core import Plain, attach
from experiment_kit.optim import Constant, Schedule, decay_groups, scheduled
from experiment_kit.penalties import penalised
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn
from torchmetrics import MeanMetric

from attention_speech.augment import Masks
from attention_speech.average import BestAverage
from attention_speech.data.batches import Batch
from attention_speech.decoding import Search, beam_search, greedy
from attention_speech.errors import ErrorRate, by_words
from attention_speech.features import Bank, Features, frames, real
from attention_speech.losses import alignment, divergence, ended
from attention_speech.models import Recogniser, Size
from attention_speech.models.lm import load
from attention_speech.results import Results
from attention_speech.vocabulary import BLANK, BOS, Vocabulary


class SpeechRecogniser(LightningModule):
    r"""Encoder whose attention has slots, trained by CTC, and its decoder's by divergence.

    .. math:: \mathcal{L} = \lambda \, \mathrm{CTC} + (1 - \lambda) \, \mathrm{KL}
        + \tfrac{1}{L} \sum_l \mathrm{penalty}_l

    with :math:`\lambda` the `ctc_weight`. The epoch is chosen by the accuracy of the decoder's
    next token, given the true ones; beside it stands the word error rate of greedy CTC. Tested is
    the mean of the `average` best epochs, 1 for the best alone, by a beam search, with the
    `language_model` of a file where one is named. `vocab_size` and `tokenizer`, the file of its
    pieces, come from the data. `layers` says which layers of the encoder the slots sit in; the
    others and the decoder stay plain. `decay_all` decays biases, norms and coefficients like all
    else, as released.

    Raises ValueError for sizes and settings that do not fit together, and where the mechanism has
    no place in the network; UserError for speech that is too long.

    >>> size = Size(width=8, heads=2, encoder_layers=1, decoder_layers=1, hidden=8)
    >>> module = SpeechRecogniser(7, "x.model", size=size, bank=Bank(), masks=Masks(),
    ...                           search=Search())
    >>> len(module.layers())
    2
    """

    def __init__(
        self,
        vocab_size: int,
        tokenizer: str,
        *,
        size: Size,
        bank: Bank,
        masks: Masks,
        search: Search,
        ctc_weight: float = 0.3,
        smoothing: float = 0.1,
        average: int = 10,
        language_model: str | None = None,
        filter: Callable[[int], nn.Module] = Plain,
        kernel: Callable[[int, int], nn.Module] | None = None,
        tokens: Callable[[int], nn.Module] | None = None,
        reparam: Callable[[int], nn.Module] | None = None,
        layers: str = ":",
        optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW,
        weight_decay: float = 0.01,
        decay_all: bool = False,
        schedule: Schedule | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()  # what the config says, not the objects made of it
        for name, value in {"ctc_weight": ctc_weight, "smoothing": smoothing}.items():
            if not 0 <= value < 1:
                raise ValueError(f"model.{name} must be from 0 to below 1, got {value}")
        self.make_optimizer, self.weight_decay = optimizer, weight_decay
        self.decay_all, self.schedule = decay_all, schedule or Constant()
        self.ctc_weight, self.smoothing, self.search = ctc_weight, smoothing, search
        self.averages = BestAverage(average)
        self.language_path = language_model
        self.language_model: list[nn.Module] = []  # in a list, it is in no checkpoint
        self.vocabulary = Vocabulary(tokenizer)
        self.features = Features(bank, masks)
        self.network = Recogniser(size, bank.bands, vocab_size)
        encoder = self.network.transformer.encoder
        attach(encoder)  # Plain everywhere, so that every layer's map can be watched
        attach(encoder, filter, layers, kernel=kernel, tokens=tokens, reparam=reparam)
        self.gathered = bank.epochs
        self.accuracy: Any = MeanMetric()
        self.words: Any = ErrorRate()
        self.results = Results()

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of CTC (B, S, V) and of attention (B, U + 1, V), and how many states are real."""
        gather = self.training and self.current_epoch < self.gathered
        x, lengths = self.features(batch.waves, batch.lengths, gather)
        begun = F.pad(batch.tokens, (1, 0), value=BOS)
        return self.network(x, lengths, begun)

    def _loss(self, batch: Batch, outputs: tuple[Tensor, Tensor, Tensor], stage: str) -> Tensor:
        ctc, attention, lengths = outputs
        parts = {
            "ctc": alignment(ctc, lengths, batch.tokens, batch.token_lengths),
            "attention": divergence(
                attention, ended(batch.tokens, batch.token_lengths), self.smoothing
            ),
        }
        named = {f"{stage}/{name}": value for name, value in parts.items()}
        self.log_dict(named, batch_size=len(batch.names))
        return self.ctc_weight * parts["ctc"] + (1 - self.ctc_weight) * parts["attention"]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Both losses in their weights, and what the kernels add."""
        return penalised(self, lambda: self._loss(batch, self(batch), "train"))

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Score the utterances that choose the epoch."""
        outputs = ctc, attention, lengths = self(batch)
        targets = ended(batch.tokens, batch.token_lengths)
        self.accuracy.update((attention.argmax(-1) == targets)[targets != BLANK].float())
        self.words.update(map(by_words, batch.texts, self._texts(greedy(ctc, lengths))))
        self.log("val/loss", self._loss(batch, outputs, "val"), batch_size=len(batch.names))

    def on_validation_epoch_end(self) -> None:
        """Log what chooses the epoch, and what it comes to in words."""
        accuracy, wer = self.accuracy.compute(), self.words.compute()["rate"]
        found = {"val/accuracy": accuracy, "val/score": accuracy, "val/wer": wer}
        self.log_dict(found, prog_bar=True)
        self.accuracy.reset()
        self.words.reset()

    def on_test_start(self) -> None:
        """Load the language model, which is no part of this one."""
        path = self.language_path
        self.language_model = [load(path, self.vocabulary).to(self.device)] if path else []

    def on_test_epoch_start(self) -> None:
        """Begin anew: a run may test more than once."""
        self.results.reset()

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Search, and compare with what was said."""
        began = time.perf_counter()
        x, lengths = self.features(batch.waves, batch.lengths)
        states, lengths = self.network.encode(x, lengths)
        found = beam_search(self.network, states, lengths, self.search, *self.language_model)
        texts, seconds = self._texts(found), time.perf_counter() - began
        by_ctc = self._texts(greedy(self.network.ctc(states), lengths))
        self.results.update(dataloader_idx, batch, texts, by_ctc, seconds)

    def on_test_epoch_end(self) -> None:
        """Log the rates, and write every hypothesis into the run's folder."""
        found = self.results.compute(len(self.trainer.num_test_batches))
        self.log_dict({f"test/{name}": value for name, value in found.items()})
        self.results.write(Path(self.trainer.default_root_dir) / "hypotheses.txt")

    def predict_step(
        self, batch: Batch, batch_idx: int, dataloader_idx: int = 0
    ) -> list[tuple[str, str]]:
        """Each utterance's name, and what greedy CTC hears; the beam's texts come with the test."""
        x, lengths = self.features(batch.waves, batch.lengths)
        states, lengths = self.network.encode(x, lengths)
        texts = self._texts(greedy(self.network.ctc(states), lengths))
        return list(zip(batch.names, texts, strict=True))

    def _texts(self, found: Sequence[Sequence[int]]) -> list[str]:
        return [self.vocabulary.decode(ids) for ids in found]

    def layers(self) -> Sequence[nn.Module]:
        """The modules whose outputs are tokens, for the spectral monitor."""
        return self.network.layers()

    def token_mask(self, batch: Batch) -> Tensor:
        """Which states are real, for the spectral monitor."""
        longest = torch.tensor(batch.waves.shape[1])
        number, most = (self.network.shortened(frames(n)) for n in (batch.lengths, longest))
        return real(number, int(most))

    def configure_callbacks(self) -> list[Callback]:
        """What keeps the epochs that are averaged, where it is more than one."""
        if self.averages.count == 1:
            return []
        trainer: Any = self.trainer
        return [] if self.averages in trainer.callbacks else [self.averages]

    def configure_optimizers(self) -> Any:
        """The optimiser over parameters with and without decay, and the schedule."""
        groups = decay_groups(self.network, self.weight_decay)
        if self.decay_all:
            groups = [{**group, "weight_decay": self.weight_decay} for group in groups]
        optimizer = self.make_optimizer(groups)
        return [optimizer], [scheduled(self.schedule, optimizer, self.trainer)]
