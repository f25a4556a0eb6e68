"""Training and testing of a speech recognizer, with the slots of every mechanism."""

import math
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from attention_core.checks import check_probabilities
from experiment_kit.errors import UserError
from experiment_kit.training.module import AttentionModule
from lightning.pytorch import Callback
from torch import Tensor, nn
from torchmetrics import MeanMetric

from attention_speech import features
from attention_speech.audio import SAMPLE_RATE
from attention_speech.checkpoint_averaging import CheckpointAveraging
from attention_speech.data import SpeechData
from attention_speech.data.base import SpeechBatch, check_seconds
from attention_speech.decoding import BeamSearchConfig, beam_search, greedy_ctc_decode
from attention_speech.losses import append_eos, ctc_loss, label_smoothed_kl
from attention_speech.models.lm import load_language_model
from attention_speech.models.recognizer import Recognizer, RecognizerConfig, SpeechEncoder
from attention_speech.tokenizer import BLANK, BOS, PUBLISHED, Tokenizer, find_published
from attention_speech.wer import DecodingResults, ErrorRate, count_word_edits


class SpeechRecognizer(AttentionModule):
    r"""Encoder whose attention has slots, trained by CTC, and a decoder trained by divergence.

    .. math:: \mathcal{L} = \lambda \, \mathrm{CTC} + (1 - \lambda) \, \mathrm{KL}
        + \tfrac{1}{L} \sum_l \mathrm{penalty}_l

    where :math:`\lambda` is `ctc_weight`. The accuracy of the decoder's next token, given the true
    ones before it, selects the epoch; the word error rate of greedy CTC is logged beside it. The
    slots are in the encoder, and the decoder stays plain.

    Args:
        vocab_size: Number of token ids, from the data.
        tokenizer_file: File of the tokenizer, from the data.
        network: Sizes of the network.
        fbank: Settings of the mel filterbank.
        spec_augment: Settings of SpecAugment.
        beam_search: Settings of the beam search of testing.
        ctc_weight: Weight of CTC in the loss.
        label_smoothing: Share of the decoder's labels that goes to all others.
        num_averaged_epochs: Best epochs whose mean is tested; 1 is the best alone.
        language_model: File of a language model for the beam search; "published" is
            speechbrain's, in DATA_DIR; null is none.
    """

    def __init__(
        self,
        vocab_size: int,
        tokenizer_file: str,
        *,
        network: RecognizerConfig,
        fbank: features.FbankConfig,
        spec_augment: features.SpecAugment,
        beam_search: BeamSearchConfig,
        ctc_weight: float = 0.3,
        label_smoothing: float = 0.1,
        num_averaged_epochs: int = 10,
        language_model: str | None = None,
        weight_decay: float = 0.01,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight_decay=weight_decay, **kwargs)
        check_probabilities("model", ctc_weight=ctc_weight, label_smoothing=label_smoothing)
        if language_model == PUBLISHED:
            language_model = str(find_published("lm.ckpt"))
        if language_model and not Path(language_model).is_file():
            raise UserError(f"model.language_model {language_model} is no file")
        self.ctc_weight, self.label_smoothing = ctc_weight, label_smoothing
        self.beam_search = beam_search
        self.averaging = CheckpointAveraging(num_averaged_epochs)
        self.language_model_path = language_model
        self.language_model: list[nn.Module] = []  # a list keeps it out of checkpoints
        self.tokenizer = Tokenizer(tokenizer_file)
        self.features = features.FeatureExtractor(fbank, spec_augment)
        self.model = Recognizer(network, fbank.n_mels, vocab_size)
        self.attach_slots(self.model.transformer.encoder)
        self.stats_epochs, self.n_mels = fbank.stats_epochs, fbank.n_mels
        self.accuracy: Any = MeanMetric()
        self.word_errors: Any = ErrorRate()
        self.results = DecodingResults()

    def forward(self, batch: SpeechBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits of CTC (B, S, V) and of attention (B, U + 1, V), and the state counts."""
        update_statistics = self.training and self.current_epoch < self.stats_epochs
        x, lengths = self._compute_features(batch, update_statistics)
        return self.model(x, lengths, F.pad(batch.tokens, (1, 0), value=BOS))

    def compute_loss(self, batch: SpeechBatch, outputs: tuple[Tensor, ...], prefix: str) -> Tensor:
        """Return the weighted sum of both losses, and log each."""
        ctc_logits, attention_logits, lengths = outputs
        targets = append_eos(batch.tokens, batch.token_lengths)
        ctc = ctc_loss(ctc_logits, lengths, batch.tokens, batch.token_lengths)
        attention = label_smoothed_kl(attention_logits, targets, self.label_smoothing)
        losses = {f"{prefix}ctc": ctc, f"{prefix}attention": attention}
        self.log_dict(losses, batch_size=len(batch.names), add_dataloader_idx=False)
        return self.ctc_weight * ctc + (1 - self.ctc_weight) * attention

    def training_step(self, batch: SpeechBatch, batch_idx: int) -> Tensor:
        """Return the loss with the penalties of the kernels."""
        return self.compute_training_loss(lambda: self.compute_loss(batch, self(batch), "train/"))

    def validation_step(self, batch: SpeechBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score the utterances that select the epoch; of further loaders log the losses alone."""
        prefix = f"val/{dataloader_idx}_" if dataloader_idx else "val/"
        outputs = ctc, attention, lengths = self(batch)
        loss, size = self.compute_loss(batch, outputs, prefix), len(batch.names)
        self.log(f"{prefix}loss", loss, batch_size=size, add_dataloader_idx=False)
        if dataloader_idx:
            return
        targets = append_eos(batch.tokens, batch.token_lengths)
        self.accuracy.update((attention.argmax(-1) == targets)[targets != BLANK].float())
        hypotheses = self._decode_ids(greedy_ctc_decode(ctc, lengths))
        self.word_errors.update(map(count_word_edits, batch.texts, hypotheses))

    def on_validation_epoch_end(self) -> None:
        """Log the score that selects the epoch, and the word error rate."""
        accuracy, wer = self.accuracy.compute(), self.word_errors.compute()["rate"]
        metrics = {"val/accuracy": accuracy, "val/score": accuracy, "val/wer": wer}
        self.log_dict(metrics, prog_bar=True)
        self.accuracy.reset()
        self.word_errors.reset()

    def on_fit_start(self) -> None:
        """Refuse speech or a language model that testing cannot use, before training begins."""
        super().on_fit_start()
        trainer: Any = self.trainer
        if splits := getattr(trainer.datamodule, "utterances", {}):
            check_seconds(chain(*splits.values()), math.prod(self.model.config.strides))
        self.on_test_start()
        self.language_model = []  # its memory is free for training

    def on_test_start(self) -> None:
        """Load the language model if there is one; refuse half precision and double."""
        if self.trainer.precision not in ("32-true", "16-mixed", "bf16-mixed"):
            raise UserError("trainer.precision: speechbrain's decoder takes 32-true or bf16-mixed")
        path = self.language_model_path
        self.language_model = []
        if path:
            self.language_model = [load_language_model(path, self.tokenizer).to(self.device)]

    def on_test_epoch_start(self) -> None:
        """Reset the results; a run may test more than once."""
        self.results.reset(len(self.trainer.num_test_batches))
        self.results.to(self.device)

    def test_step(self, batch: SpeechBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Decode a batch by beam search and by greedy CTC, and count the errors."""
        start = time.perf_counter()
        states, lengths = self.model.encode(*self._compute_features(batch))
        ids = beam_search(self.model, states, lengths, self.beam_search, *self.language_model)
        hypotheses, seconds = self._decode_ids(ids), time.perf_counter() - start
        greedy = self._decode_ids(greedy_ctc_decode(self.model.ctc(states), lengths))
        self.results.update(dataloader_idx, batch, hypotheses, greedy, seconds)

    def on_test_epoch_end(self) -> None:
        """Log the error rates, and write every hypothesis into the run's folder."""
        data: Any = getattr(self.trainer, "datamodule", None)
        metrics = self.results.compute("other_" * (len(getattr(data, "test_splits", ())) == 2))
        self.log_dict({f"test/{name}": value for name, value in metrics.items()})
        self.results.write(Path(self.trainer.default_root_dir) / "hypotheses.txt")

    def predict_step(
        self, batch: SpeechBatch, batch_idx: int, dataloader_idx: int = 0
    ) -> list[tuple[str, str]]:
        """Return each utterance's name and text by greedy CTC; testing writes the beam's texts."""
        states, lengths = self.model.encode(*self._compute_features(batch))
        texts = self._decode_ids(greedy_ctc_decode(self.model.ctc(states), lengths))
        return list(zip(batch.names, texts, strict=True))

    def _compute_features(self, batch: SpeechBatch, update: bool = False) -> tuple[Tensor, Tensor]:
        if not isinstance(batch, SpeechBatch) or batch.waves.ndim != 2:
            raise UserError("a batch must be a SpeechBatch of waves (B, T): see docs/own_data.md")
        return self.features(batch.waves, batch.lengths, update)

    def _decode_ids(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [self.tokenizer.decode(row) for row in ids]

    def token_mask(self, batch: SpeechBatch) -> Tensor:
        """Return the mask of valid states (B, S), for the spectral monitor."""
        longest = torch.tensor(batch.waves.shape[1])
        lengths, size = (
            self.model.num_states(features.num_frames(samples))
            for samples in (batch.lengths, longest)
        )
        return features.length_mask(lengths, int(size))

    def example_inputs(self, data: SpeechData, batch_size: int) -> tuple[Tensor, ...]:
        """Return random features that fill `data.batch_seconds`, and their numbers of frames."""
        seconds = min(data.batch_seconds / batch_size, data.max_seconds)
        frames = int(features.num_frames(torch.tensor(round(SAMPLE_RATE * seconds))))
        x = torch.randn(batch_size, frames, self.n_mels)
        return x, torch.full((batch_size,), frames)

    def efficiency_network(self) -> nn.Module:
        """Return front end and encoder, without the decoder."""
        return SpeechEncoder(self.model)

    def load_tested_weights(self, checkpoint: Path) -> None:
        """Replace the weights of best.ckpt by the mean that is tested."""
        if weights := self.averaging.average_epochs(checkpoint, self):
            self.load_state_dict(weights)

    def configure_callbacks(self) -> list[Callback]:
        """Return the callback that averages epochs, if it averages more than one."""
        if self.averaging.num_epochs == 1:
            return []
        trainer: Any = self.trainer
        return [] if self.averaging in trainer.callbacks else [self.averaging]
