"""Recordings and batches: joined waves, changed speeds, workers."""

import pickle
from pathlib import Path

import pytest
import torch
from attention_speech.audio import SAMPLE_RATE, UnusableAudio, Utterance
from attention_speech.data import SyntheticDigits
from attention_speech.data.batch import (
    GAP_SECONDS,
    Collator,
    Recordings,
    change_speed,
    join_waves,
)
from attention_speech.tokenizer import Tokenizer
from experiment_kit.errors import exit_on_user_error
from torch.utils.data import DataLoader

from tests.apps.speech.corpora import read_data, write_noise

pytestmark = pytest.mark.usefixtures("workdir")


def test_a_file_damaged_after_the_manifest_is_named(capfd) -> None:
    path = write_noise(Path("a.wav"))
    one = Utterance("a", (str(path),), 1.0, "ONE", "x")
    assert len(Recordings([one])[0][0]) == SAMPLE_RATE
    path.write_text("gone")
    with pytest.raises(UnusableAudio, match=r"a\.wav: no audio file"):
        Recordings([one])[0]
    with pytest.raises(SystemExit) as caught, exit_on_user_error():  # also by a worker
        next(iter(DataLoader(Recordings([one]), num_workers=1)))
    assert caught.value.code == 2
    assert capfd.readouterr().err == "error: a.wav: no audio file\n"


def test_waves_are_joined_and_played_faster() -> None:
    wave = join_waves([torch.ones(3), 2 * torch.ones(2)])
    assert len(wave) == 5 + round(GAP_SECONDS * SAMPLE_RATE)
    assert wave[:3].tolist() == [1, 1, 1]
    assert wave[-2:].tolist() == [2, 2]
    assert not wave[3:-2].any()
    time = torch.arange(SAMPLE_RATE) / SAMPLE_RATE
    fast = change_speed(torch.sin(2 * torch.pi * 400 * time), 1.25)
    assert len(fast) == 12800
    assert torch.fft.rfft(fast).abs().argmax() * SAMPLE_RATE / 12800 == 500


def test_a_collator_can_be_pickled_and_refuses_an_empty_batch() -> None:
    data = read_data(SyntheticDigits("synthetic", num_strings=10, engine="formants"))
    collate = pickle.loads(pickle.dumps(data.collate))
    assert isinstance(collate.tokenizer, Tokenizer)
    items = [data.splits["train"][0]]
    assert torch.equal(collate(items).tokens, data.collate(items).tokens)
    with pytest.raises(ValueError, match="at least one utterance"):
        Collator(data.tokenizer)([])
