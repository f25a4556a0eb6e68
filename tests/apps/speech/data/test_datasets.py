"""LibriSpeech, spoken digits and an4: layouts, splits, and malformed files."""

import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from attention_speech.audio import SAMPLE_RATE
from attention_speech.data import An4, FreeSpokenDigits, LibriSpeech, SpeechData
from attention_speech.data.an4 import read_split
from attention_speech.synthesis.formants import DIGITS
from experiment_kit.errors import UserError

from tests.apps.speech import corpora
from tests.apps.speech.corpora import SMALL, read_data, write_folder, write_librispeech

pytestmark = pytest.mark.usefixtures("workdir")
SETTINGS = {"val_speaker": "bob", "test_speaker": "di", "num_train": 30, "num_val": 4,
            "num_test": 6}  # fmt: skip


def list_speakers(data: SpeechData) -> dict[str, set[str]]:
    return {split: {one.speaker for one in items.utterances}
            for split, items in data.splits.items()}  # fmt: skip


def test_each_test_split_has_a_loader(capsys) -> None:
    data = read_data(LibriSpeech("librispeech_100h", str(write_librispeech()), **SMALL))
    assert {split: len(items) for split, items in data.splits.items()} == {
        "train": 10, "val": 2, "test-clean": 3, "test-other": 4}  # fmt: skip
    clean, other = data.test_dataloader()
    batch = next(iter(clean))
    assert batch.names == ["19-7-0000", "19-7-0001", "19-7-0002"]
    assert batch.lengths.tolist() == [round(s * SAMPLE_RATE) for s in (0.6, 0.8, 1.0)]
    assert batch.waves.shape == (3, SAMPLE_RATE)
    assert not batch.waves[0, 9600:].any()
    assert batch.waves[0, :9600].any()
    rows = zip(batch.tokens.tolist(), batch.token_lengths, strict=True)
    assert [data.tokenizer.decode(ids[:count]) for ids, count in rows] == batch.texts
    assert sum(len(batch.names) for batch in other) == 4
    assert len(data.predict_dataloader()) == 2
    assert data.vocab_size == data.tokenizer.vocab_size
    assert Path(data.tokenizer_file).is_file()
    few = batch.first(2)
    assert (few.waves.shape, few.names) == ((2, SAMPLE_RATE), batch.names[:2])
    assert capsys.readouterr().err == ""


def test_dev_names_the_folders_that_select_the_epoch() -> None:
    root = write_librispeech()
    clean = read_data(LibriSpeech("librispeech_100h", str(root), **SMALL)).splits["val"].utterances
    both = LibriSpeech("librispeech_100h", str(root), dev=("dev-clean", "dev-other"), **SMALL)
    with pytest.raises(UserError, match=r"LibriSpeech has no dev-other \(.*data librispeech_100h"):
        both.find_data("librispeech_100h", str(root), both.dev)
    write_folder(root / "LibriSpeech" / "dev-other", {"31-8-0000": (0.7, "HE SAW A B")})
    names = [one.name for one in read_data(both).splits["val"].utterances]
    assert names == [*(one.name for one in clean), "31-8-0000"]
    data = read_data(LibriSpeech("librispeech_100h", str(root), protocol="test", **SMALL))
    assert data.splits["val"].utterances == data.splits["test-clean"].utterances
    with pytest.raises(ValueError, match=r"data\.dev must be of dev-clean and dev-other, got"):
        LibriSpeech("librispeech_100h", dev=("test-clean",))


def test_missing_folders_are_named(monkeypatch) -> None:
    monkeypatch.setenv("DATA_DIR", str(write_librispeech()))
    assert LibriSpeech.find_data("librispeech_100h") == Path("data/LibriSpeech")
    with pytest.raises(UserError, match=r"has no train-clean-360, train-other-500 .*data libri"):
        LibriSpeech.find_data("librispeech_960h")
    shutil.rmtree("data")
    with pytest.raises(UserError, match="DATA_DIR: data is not a folder"):
        LibriSpeech.find_data("librispeech_100h")


def write_fsdd(root: Path, takes: int = 3) -> None:
    for speaker, digit, take in product(("ann", "bob", "cy", "di"), range(10), range(takes)):
        path = root / "recordings" / f"{digit}_{speaker}_{take}.wav"
        corpora.write_noise(path, 0.3 + 0.01 * digit, rate=8000)


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
    assert list_speakers(data) == {"train": {"ann", "cy"}, "val": {"bob"}, "test": {"di"}}
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


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"test_speaker": "eve"}, UserError, "one of ann, bob, cy, di, got 'eve'"),
    ({"test_speaker": "bob"}, ValueError, "must differ, got 'bob'"),
    ({"num_val": 0}, ValueError, "data.num_val must be at least 1, got 0"),
    ({"speeds": (0.1,)}, ValueError, "factors from 0.5 to 2"),
    ({"speeds": (0.9, 1.0), "max_seconds": 119.0}, ValueError, "must be at least 132"),
    ({"token_type": "bpe"}, ValueError, "data.token_type must be one of unigram, char"),
])  # fmt: skip
def test_bad_arguments_are_refused(options, error, message, tmp_path: Path) -> None:
    write_fsdd(tmp_path / "fsdd", takes=1)
    arguments = {"dataset_name": "fsdd", "data_dir": str(tmp_path), **SETTINGS, **options}
    with pytest.raises(error, match=message):
        _ = FreeSpokenDigits(**arguments).utterances


def write_an4(root: Path, suffix: str = ".sph") -> Path:
    (root / "etc").mkdir(parents=True)
    for split, folder in {"train": "an4_clstk", "test": "an4test_clstk"}.items():
        speakers = ("fash", "mblw", "mgah")
        names = [f"{folder}/{who}/an{i}-{who}-b" for who in speakers for i in range(2)]
        (root / "etc" / f"an4_{split}.fileids").write_text("\n".join(names) + "\n")
        form = "{} ({})" if split == "test" else "<s> {} </s> ({})"
        rows = [form.format("ENTER ++NOISE++ five", Path(name).name) for name in names]
        (root / "etc" / f"an4_{split}.transcription").write_text("\n".join(rows) + "\n")
        for name in names:
            path = root / "wav" / f"{name}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            if suffix == ".raw":
                corpora.write_bytes(path, np.arange(8000, dtype=">i2").tobytes())
            else:
                corpora.write_audio(path, np.zeros(8000), format="NIST", subtype="PCM_16")
    return root


@pytest.mark.parametrize("suffix", [".sph", ".raw"])
def test_validation_speakers_are_held_out(suffix, tmp_path: Path) -> None:
    write_an4(tmp_path / "an4", suffix)
    data = read_data(An4("an4", str(tmp_path), token_type="char"))
    speakers = list_speakers(data)
    assert len(speakers["val"]) == 1
    assert speakers["train"] | speakers["val"] == speakers["test"] == {"fash", "mblw", "mgah"}
    assert not speakers["train"] & speakers["val"]
    assert {one.text for one in data.splits["test"].utterances} == {"ENTER FIVE"}
    assert len(data.splits["test"][0][0]) == 8000


def test_missing_and_malformed_files_are_named(tmp_path: Path) -> None:
    root = write_an4(tmp_path / "an4")
    (root / "wav" / "an4_clstk" / "fash" / "an0-fash-b.sph").unlink()
    assert read_split(root, "train").notes == [
        "1 utterance with a transcript but no audio (an0-fash-b): left out"
    ]
    (root / "etc" / "an4_test.transcription").write_text("ENTER FIVE\n")
    with pytest.raises(UserError, match=r"an4_test.transcription, line 1: no \(name\) at its end"):
        read_split(root, "test")
    (root / "etc" / "an4_test.fileids").unlink()
    with pytest.raises(UserError, match=r"an4_test.fileids cannot be read"):
        read_split(root, "test")
