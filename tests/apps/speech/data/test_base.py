"""Speech data of all kinds: long and hard utterances, changed speeds, prediction."""

import pytest
import torch
from attention_speech.audio import SAMPLE_RATE
from attention_speech.data import LibriSpeech
from attention_speech.data.batch import SpeechBatch
from attention_speech.tokenizer import UNK
from lightning.pytorch import LightningModule, Trainer

from tests.apps.speech.corpora import SMALL, read_data, write_folder, write_librispeech

pytestmark = pytest.mark.usefixtures("workdir")


def test_long_utterances_are_tested_but_not_trained_on(capsys) -> None:
    root = write_librispeech()
    for split in ("train-clean-100", "test-clean"):
        write_folder(root / "LibriSpeech" / split, {"19-8-0000": (7.0, "HE SAW A B")})
    data = read_data(LibriSpeech("librispeech_100h", str(root), **SMALL))
    assert "1 utterance with more than 5 s (19-8-0000): not trained on" in capsys.readouterr().err
    assert len(data.splits["train"]) == 10
    assert [batch.names for batch in data.test_dataloader()[0]][-1] == ["19-8-0000"]


def test_unknown_letters_and_crowded_texts_are_counted(capsys) -> None:
    root = write_librispeech()
    rows = {"9-8-0000": (1.0, "HE SAW Q"), "9-8-0001": (0.3, "SAW HEB")}
    write_folder(root / "LibriSpeech" / "dev-clean", rows)
    data = read_data(LibriSpeech("librispeech_100h", str(root), **SMALL))
    assert capsys.readouterr().err.splitlines() == [
        "note: librispeech_100h: val: 1 utterance with a token outside of the vocabulary "
        "(9-8-0000)",
        "note: librispeech_100h: val: 1 utterance with more tokens than CTC aligns at 25 a second "
        "(9-8-0001)",
    ]
    batch = next(iter(data.val_dataloader()))
    row = batch.tokens[batch.names.index("9-8-0000")].tolist()
    assert row.count(UNK) == 1


def test_drawn_speeds_do_not_depend_on_workers() -> None:
    root, speeds = str(write_librispeech()), (0.9, 1.0, 1.1)

    def load_epoch(workers: int) -> list[SpeechBatch]:
        options = {"speeds": speeds, "num_workers": workers, **SMALL}
        data = read_data(LibriSpeech("librispeech_100h", root, **options))
        data.trainer = None
        return list(data.train_dataloader())

    one, two = load_epoch(0), load_epoch(2)
    assert [batch.names for batch in one] == [batch.names for batch in two]
    assert all(torch.equal(a.waves, b.waves) for a, b in zip(one, two, strict=True))
    factors = set()
    for batch in one:
        assert batch.waves.numel() / SAMPLE_RATE <= 6.0
        for name, length in zip(batch.names, batch.lengths.tolist(), strict=True):
            seconds = 0.6 + 0.2 * int(name[-1])
            factors.add(round(seconds * SAMPLE_RATE / length, 2))
    assert factors == set(speeds)
    assert sorted(name for batch in one for name in batch.names) == sorted(
        f"{who}-7-{i:04d}" for who in (19, 26) for i in range(5)
    )


class PredictNames(LightningModule):
    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return batch.names


def test_lightning_predicts_both_test_splits() -> None:
    data = LibriSpeech("librispeech_100h", str(write_librispeech()), **SMALL)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    names = Trainer(accelerator="cpu", devices=1, **quiet).predict(PredictNames(), data)
    assert [sum(map(len, split)) for split in names] == [3, 4]
