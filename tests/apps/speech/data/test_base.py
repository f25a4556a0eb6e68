"""Speech data of all kinds: recordings, batches, hard utterances, speeds."""

from pathlib import Path

import pytest
import torch
from attention_speech.audio import SAMPLE_RATE, UnusableAudio, Utterance
from attention_speech.data import LibriSpeech
from attention_speech.data.base import GAP_SECONDS, Recordings, change_speed, join_waves
from attention_speech.tokenizer import UNK
from experiment_kit.errors import UserError, exit_on_user_error
from torch.utils.data import DataLoader

from tests.apps.speech import corpora

pytestmark = pytest.mark.usefixtures("workdir")


def test_long_utterances_are_tested_but_not_trained_on(capsys) -> None:
    root = corpora.write_librispeech()
    for split in ("train-clean-100", "test-clean"):
        corpora.write_folder(root / "LibriSpeech" / split, {"19-8-0000": (7.0, "HE SAW A B")})
    data = corpora.read_data(LibriSpeech("librispeech_100h", str(root), **corpora.SMALL))
    assert "1 utterance with more than 5 s (19-8-0000): not trained on" in capsys.readouterr().err
    assert len(data.splits["train"]) == 10
    assert [batch.names for batch in data.test_dataloader()[0]][-1] == ["19-8-0000"]


def test_unknown_letters_and_crowded_texts_are_counted(capsys) -> None:
    root = corpora.write_librispeech()
    rows = {"9-8-0000": (1.0, "HE SAW Q"), "9-8-0001": (0.3, "SAW HEB")}
    corpora.write_folder(root / "LibriSpeech" / "dev-clean", rows)
    data = corpora.read_data(LibriSpeech("librispeech_100h", str(root), **corpora.SMALL))
    assert capsys.readouterr().err.splitlines() == [
        "note: librispeech_100h: val: 1 utterance with a token outside of the vocabulary "
        "(9-8-0000)",
        "note: librispeech_100h: val: 1 utterance with more tokens than CTC aligns at 25 a second "
        "(9-8-0001)",
    ]
    batch = next(iter(data.val_dataloader()))
    assert batch.tokens[batch.names.index("9-8-0000")].tolist().count(UNK) == 1


@pytest.mark.parametrize("given", ["published", "file"])
def test_a_given_tokenizer_takes_the_place_of_a_trained_one(given, tmp_path) -> None:
    root = corpora.write_librispeech()
    options = {"data_dir": str(root), **corpora.SMALL}
    with pytest.raises(UserError, match=r"no asr-transformer-.*tokenizer.ckpt .*hf download"):
        corpora.read_data(LibriSpeech("librispeech_100h", tokenizer="published", **options))
    folder = root / "asr-transformer-transformerlm-librispeech"
    folder.mkdir()
    path = corpora.train_as_speechbrain(folder)
    tokenizer = given if given == "published" else str(path)
    data = corpora.read_data(LibriSpeech("librispeech_100h", tokenizer=tokenizer, **options))
    assert data.tokenizer_file == str(path)
    assert data.vocab_size == 22
    assert all((batch.tokens != 1).all() for batch in data.train_dataloader())


def test_drawn_speeds_do_not_depend_on_workers() -> None:
    root, speeds = str(corpora.write_librispeech()), (0.9, 1.0, 1.1)

    def load_epoch(workers: int) -> list:
        options = {"speeds": speeds, "num_workers": workers, **corpora.SMALL}
        data = corpora.read_data(LibriSpeech("librispeech_100h", root, **options))
        data.trainer = None
        return list(data.train_dataloader())

    one, two = load_epoch(0), load_epoch(2)
    assert [batch.names for batch in one] == [batch.names for batch in two]
    assert all(torch.equal(a.waves, b.waves) for a, b in zip(one, two, strict=True))
    factors = set()
    for batch in one:
        assert batch.waves.numel() / SAMPLE_RATE <= 6.0
        for name, length in zip(batch.names, batch.lengths.tolist(), strict=True):
            factors.add(round((0.6 + 0.2 * int(name[-1])) * SAMPLE_RATE / length, 2))
    assert factors == set(speeds)
    assert sorted(name for batch in one for name in batch.names) == sorted(
        f"{who}-7-{i:04d}" for who in (19, 26) for i in range(5)
    )


def test_a_file_damaged_after_the_manifest_is_named(capfd) -> None:
    path = corpora.write_noise(Path("a.wav"))
    one = Utterance("a", (str(path),), 1.0, "ONE", "x")
    assert len(Recordings([one])[0][0]) == SAMPLE_RATE
    path.write_text("gone")
    with pytest.raises(UnusableAudio, match=r"a\.wav: no audio file of a known format"):
        Recordings([one])[0]
    with pytest.raises(SystemExit) as caught, exit_on_user_error():  # also by a worker
        next(iter(DataLoader(Recordings([one]), num_workers=1)))
    assert caught.value.code == 2
    assert capfd.readouterr().err == "error: a.wav: no audio file of a known format\n"


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
