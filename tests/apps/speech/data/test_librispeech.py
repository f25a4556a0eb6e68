"""LibriSpeech: its layout, its splits, and the split that selects the epoch."""

import shutil
from pathlib import Path

import pytest
from attention_speech.audio import SAMPLE_RATE
from attention_speech.data import LibriSpeech
from attention_speech.data.batch import SpeechBatch
from attention_speech.data.librispeech import DOWNLOADS, read_folder
from experiment_kit.errors import UserError

from tests.apps.speech.corpora import SMALL, read_data, write_folder, write_librispeech

pytestmark = pytest.mark.usefixtures("workdir")


def test_each_test_split_has_a_loader(capsys) -> None:
    data = read_data(LibriSpeech("librispeech_100h", str(write_librispeech()), **SMALL))
    assert {split: len(items) for split, items in data.splits.items()} == {
        "train": 10, "val": 2, "test-clean": 3, "test-other": 4}  # fmt: skip
    clean, other = data.test_dataloader()
    batch = next(iter(clean))
    assert isinstance(batch, SpeechBatch)
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
    assert few.waves.shape == (2, SAMPLE_RATE)
    assert few.names == batch.names[:2]
    assert capsys.readouterr().err == ""


def test_dev_names_the_folders_that_select_the_epoch() -> None:
    root = write_librispeech()
    clean = read_data(LibriSpeech("librispeech_100h", str(root), **SMALL)).splits["val"].utterances
    both = LibriSpeech("librispeech_100h", str(root), dev=("dev-clean", "dev-other"), **SMALL)
    with pytest.raises(UserError, match=r"LibriSpeech has no dev-other \(.*download"):
        both.find_data("librispeech_100h", str(root), both.dev)
    write_folder(root / "LibriSpeech" / "dev-other", {"31-8-0000": (0.7, "HE SAW A B")})
    names = [one.name for one in read_data(both).splits["val"].utterances]
    assert names == [*(one.name for one in clean), "31-8-0000"]
    with pytest.raises(ValueError, match=r"data\.dev must be of dev-clean and dev-other, got"):
        LibriSpeech("librispeech_100h", dev=("test-clean",))


def test_protocol_test_selects_the_epoch_on_test_clean(monkeypatch) -> None:
    monkeypatch.setenv("DATA_DIR", str(write_librispeech()))
    data = read_data(LibriSpeech("librispeech_100h", protocol="test", **SMALL))
    assert data.splits["val"].utterances == data.splits["test-clean"].utterances


def test_missing_folders_are_named(monkeypatch) -> None:
    monkeypatch.setenv("DATA_DIR", str(write_librispeech()))
    assert LibriSpeech.find_data("librispeech_100h") == Path("data/LibriSpeech")
    with pytest.raises(UserError, match=r"has no train-clean-360, train-other-500 .*download"):
        LibriSpeech.find_data("librispeech_960h")
    shutil.rmtree("data")
    with pytest.raises(UserError, match="DATA_DIR data is not a folder"):
        LibriSpeech.find_data("librispeech_100h")


def test_a_chapter_and_a_whole_split_are_read(tmp_path: Path) -> None:
    place = write_folder(tmp_path / "x", {"5-1-0000": (0.5, "one two")}) / "5" / "1"
    (one,) = read_folder("chapter", place).utterances
    assert read_folder("split", tmp_path / "x").utterances == [one]
    assert (one.text, one.speaker, one.seconds) == ("ONE TWO", "5", 0.5)
    (place / "5-1.trans.txt").write_bytes(b"5-1-0000 \xff\xfe")
    with pytest.raises(UserError, match="is not text in UTF-8"):
        read_folder("chapter", place)


@pytest.mark.parametrize("dataset_name", LibriSpeech.DATASETS)
def test_downloads_are_the_folders_that_are_needed(dataset_name, tmp_path: Path) -> None:
    for download in DOWNLOADS[dataset_name]:
        (tmp_path / download.path).mkdir(parents=True)
        assert download.url.endswith(f"/{Path(download.path).name}.tar.gz")
    dev = "dev-clean", "dev-other"
    assert LibriSpeech.find_data(dataset_name, str(tmp_path), dev) == tmp_path / "LibriSpeech"
