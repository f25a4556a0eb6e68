"""Spoken digits: strings of one speaker, splits without common speakers."""

from pathlib import Path

import pytest
from attention_speech.audio import SAMPLE_RATE, Utterance
from attention_speech.data import FreeSpokenDigits
from attention_speech.data.batch import GAP_SECONDS
from attention_speech.data.fsdd import draw_strings
from attention_speech.synthesis import DIGITS
from experiment_kit.errors import UserError

from tests.apps.speech.corpora import read_data, write_noise

pytestmark = pytest.mark.usefixtures("workdir")
SETTINGS = {"val_speaker": "bob", "test_speaker": "di", "num_train": 30, "num_val": 4,
            "num_test": 6}  # fmt: skip


def write_fsdd(root: Path, takes: int = 3) -> Path:
    for speaker in ("ann", "bob", "cy", "di"):
        for digit in range(10):
            for take in range(takes):
                path = root / "recordings" / f"{digit}_{speaker}_{take}.wav"
                write_noise(path, 0.3 + 0.01 * digit, rate=8000)
    return root


def test_strings_have_one_speaker_and_splits_share_none(tmp_path: Path, capsys) -> None:
    write_fsdd(tmp_path / "d" / "fsdd")
    (tmp_path / "d" / "fsdd" / "recordings" / "notes.wav").write_text("not audio")
    limits = {"batch_seconds": 8.0, "max_seconds": 6.0}
    data = read_data(FreeSpokenDigits("fsdd", str(tmp_path / "d"), **limits, **SETTINGS))
    assert capsys.readouterr().err.splitlines() == [
        "note: fsdd: 1 utterance with audio but no transcript (notes): left out",
        "note: fsdd: 120 utterances with 8000 Hz, resampled to 16000 Hz "
        "(0_ann_0, 0_ann_1, 0_ann_2, ...)",
        "note: fsdd: val: bob; test: di; train: ann, cy",
    ]
    speakers = {
        split: {one.speaker for one in items.utterances} for split, items in data.splits.items()
    }
    assert speakers == {"train": {"ann", "cy"}, "val": {"bob"}, "test": {"di"}}
    assert [len(data.splits[split]) for split in ("train", "val", "test")] == [30, 4, 6]
    for index, one in enumerate(data.splits["train"].utterances):
        names = [Path(path).stem for path in one.path]
        assert [DIGITS[int(name[0])] for name in names] == one.text.split()
        assert all(f"_{one.speaker}_" in name for name in names)
        assert 2 <= len(names) <= 5
        if index < 5:
            wave, text, name = data.splits["train"][index]
            assert (text, name) == (one.text, one.name)
            assert abs(len(wave) / SAMPLE_RATE - one.seconds) < 1e-3
    again = FreeSpokenDigits("fsdd", str(tmp_path / "d"), seed=5, **SETTINGS)
    assert again.utterances == data.utterances  # the strings do not depend on the run's seed
    assert len({one.name for items in data.utterances.values() for one in items}) == 40


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"test_speaker": "eve"}, UserError, "one of ann, bob, cy, di, got 'eve'"),
        ({"test_speaker": "bob"}, ValueError, "must differ, got 'bob'"),
        ({"num_val": 0}, ValueError, "must be at least 1, got 30, 0, 6"),
        ({"speeds": (0.1,)}, ValueError, "factors from 0.5 to 2"),
        ({"max_seconds": 200.0}, ValueError, "batch_seconds must be at least 200"),
        (
            {"speeds": (0.9, 1.0), "max_seconds": 119.0},
            ValueError,
            "batch_seconds must be at least 132",
        ),
        ({"max_batch_size": 0}, ValueError, "data.max_batch_size must be at least 1"),
        (
            {"dataset_name": "mnist"},
            ValueError,
            "dataset_name must be one of fsdd, got",
        ),
        ({"token_type": "bpe"}, ValueError, "data.token_type must be one of unigram, char"),
    ],
)
def test_bad_arguments_are_refused(options, error, message, tmp_path: Path) -> None:
    write_fsdd(tmp_path / "fsdd", takes=1)
    arguments = {"dataset_name": "fsdd", "data_dir": str(tmp_path), **SETTINGS, **options}
    with pytest.raises(error, match=message):
        _ = FreeSpokenDigits(**arguments).utterances


def test_drawn_strings_depend_on_their_stream_alone() -> None:
    takes = [Utterance(f"{d}{who}", (f"{d}{who}",), 0.5, DIGITS[d], who)
             for d in range(10) for who in "ab"]  # fmt: skip
    assert draw_strings(takes, 8, "x-")[:5] == draw_strings(takes[::-1], 5, "x-")
    assert draw_strings(takes, 8, "x-", 1) != draw_strings(takes, 8, "x-")
    for one in draw_strings(takes, 20):
        gaps = GAP_SECONDS * (len(one.path) - 1)
        assert one.seconds == pytest.approx(0.5 * len(one.path) + gaps)
        assert {path[1] for path in one.path} == {one.speaker}
