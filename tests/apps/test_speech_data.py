"""Data sets of speech: layouts, parts, vocabulary, batches by seconds; on files made here."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from attention_speech import download
from attention_speech.audio import RATE, UnusableAudio, Utterance
from attention_speech.data import An4, Digits, LibriSpeech, Own, SpeechData
from attention_speech.data.an4 import read_part
from attention_speech.data.batches import GAP, Batch, Collate, Recordings, joined, sped
from attention_speech.data.digits import strings
from attention_speech.data.librispeech import read_split
from attention_speech.synthesis import DIGITS
from attention_speech.vocabulary import UNKNOWN, Vocabulary
from experiment_kit.errors import UserError
from experiment_kit.sentences import told
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

SPLITS = ("train-clean-100", "dev-clean", "test-clean", "test-other")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATA_DIR", raising=False)
    return tmp_path


def sound(path: Path, seconds: float = 1.0, rate: int = RATE, channels: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    wave = 0.1 * np.random.default_rng(len(str(path))).standard_normal(
        (round(seconds * rate), channels)
    )
    soundfile.write(path, wave, rate)
    return path


def split(folder: Path, rows: dict[str, tuple[float, str]]) -> Path:
    """A split of LibriSpeech: seconds and text by <speaker>-<chapter>-<number>."""
    for name, (seconds, text) in rows.items():
        reader, chapter, _ = name.split("-")
        place = folder / reader / chapter
        sound(place / f"{name}.flac", seconds)
        with (place / f"{reader}-{chapter}.trans.txt").open("a") as file:
            file.write(f"{name} {text}\n")
    return folder


def librispeech(root: Path = Path("data")) -> Path:
    rows = {f"{who}-7-{i:04d}": (0.6 + 0.2 * i, f"HE SAW {'A' * (i + 1)} B")
            for who in (19, 26) for i in range(5)}  # fmt: skip
    for number, part in enumerate(SPLITS):
        few = dict(list(rows.items())[: 10 if number == 0 else 1 + number])
        split(root / "LibriSpeech" / part, few)
    return root


SMALL = {"batch_seconds": 6.0, "max_seconds": 5.0, "kind": "char"}


def read(data: SpeechData) -> SpeechData:
    data.setup("fit")
    return data


def test_librispeech_has_a_loader_for_each_test_part(capsys) -> None:
    data = read(LibriSpeech("librispeech_100h", str(librispeech()), **SMALL))
    assert {part: len(items) for part, items in data.parts.items()} == {
        "train": 10, "val": 2, "test-clean": 3, "test-other": 4}  # fmt: skip
    clean, other = data.test_dataloader()
    batch = next(iter(clean))
    assert isinstance(batch, Batch)
    assert batch.names == ["19-7-0000", "19-7-0001", "19-7-0002"]
    assert batch.lengths.tolist() == [round(s * RATE) for s in (0.6, 0.8, 1.0)]
    assert batch.waves.shape == (3, RATE)
    assert not batch.waves[0, 9600:].any()
    assert batch.waves[0, :9600].any()
    rows = zip(batch.tokens.tolist(), batch.token_lengths, strict=True)
    assert [data.vocabulary.decode(ids[:count]) for ids, count in rows] == batch.texts
    assert sum(len(batch.names) for batch in other) == 4
    assert len(data.predict_dataloader()) == 2
    assert data.vocab_size == data.vocabulary.size
    assert Path(data.tokenizer).is_file()
    few = batch.first(2)
    assert few.waves.shape == (2, RATE)
    assert few.names == batch.names[:2]
    assert capsys.readouterr().err == ""


def test_an_epoch_is_chosen_by_the_parts_that_dev_names() -> None:
    root = librispeech()
    clean = read(LibriSpeech("librispeech_100h", str(root), **SMALL)).parts["val"].utterances
    both = LibriSpeech("librispeech_100h", str(root), dev=("dev-clean", "dev-other"), **SMALL)
    with pytest.raises(UserError, match=r"LibriSpeech has no dev-other \(.*download"):
        both.split()
    split(root / "LibriSpeech" / "dev-other", {"31-8-0000": (0.7, "HE SAW A B")})
    names = [one.name for one in read(both).parts["val"].utterances]
    assert names == [*(one.name for one in clean), "31-8-0000"]
    with pytest.raises(ValueError, match=r"data\.dev must be of dev-clean and dev-other, got"):
        LibriSpeech("librispeech_100h", dev=("test-clean",))


def test_audio_that_became_unreadable_is_named_by_a_worker(capfd) -> None:
    one = Utterance("a", (str(sound(Path("a.wav"))),), 1.0, "ONE", "x")
    Path("a.wav").write_text("ONE")
    with pytest.raises(SystemExit) as left, told():
        next(iter(DataLoader(Recordings([one]), num_workers=1)))
    assert left.value.code == 2
    assert capfd.readouterr().err == "error: a.wav: no audio file\n"


def test_the_protocol_says_what_chooses_the_epoch(monkeypatch) -> None:
    monkeypatch.setenv("DATA_DIR", str(librispeech()))
    chosen = read(LibriSpeech("librispeech_100h", protocol="test", **SMALL))
    assert chosen.parts["val"].utterances == chosen.parts["test-clean"].utterances
    assert LibriSpeech.whereabouts("librispeech_100h") == Path("data/LibriSpeech")
    with pytest.raises(UserError, match=r"has no train-clean-360, train-other-500 .*download"):
        LibriSpeech.whereabouts("librispeech_960h")
    shutil.rmtree("data")
    with pytest.raises(UserError, match="DATA_DIR data is not a folder"):
        LibriSpeech.whereabouts("librispeech_100h")


def test_a_leaf_and_a_tree_of_librispeech_are_read(tmp_path: Path) -> None:
    place = split(tmp_path / "x", {"5-1-0000": (0.5, "one two")}) / "5" / "1"
    assert read_split("leaf", place).utterances == read_split("tree", tmp_path / "x").utterances
    (one,) = read_split("leaf", place).utterances
    assert (one.text, one.speaker, one.seconds) == ("ONE TWO", "5", 0.5)
    (place / "5-1.trans.txt").write_bytes(b"5-1-0000 \xff\xfe")
    with pytest.raises(UserError, match="is not text in UTF-8"):
        read_split("leaf", place)


def fsdd(
    root: Path, takes: int = 3, speakers: tuple[str, ...] = ("ann", "bob", "cy", "di")
) -> Path:
    for who in speakers:
        for digit in range(10):
            for take in range(takes):
                seconds = 0.3 + 0.01 * digit
                sound(root / "recordings" / f"{digit}_{who}_{take}.wav", seconds, rate=8000)
    return root


FSDD = {
    "val_speaker": "bob",
    "test_speaker": "di",
    "train_count": 30,
    "val_count": 4,
    "test_count": 6,
}


def test_digit_strings_have_one_speaker_and_parts_share_none(tmp_path: Path, capsys) -> None:
    fsdd(tmp_path / "d" / "fsdd")
    (tmp_path / "d" / "fsdd" / "recordings" / "notes.wav").write_text("not audio")
    data = read(Digits("fsdd", str(tmp_path / "d"), batch_seconds=8.0, max_seconds=6.0, **FSDD))
    told = capsys.readouterr().err.splitlines()
    assert told == [
        "note: fsdd: 1 utterance with audio but no transcript (notes): left out",
        "note: fsdd: 120 utterances with 8000 Hz, resampled to 16000 Hz "
        "(0_ann_0, 0_ann_1, 0_ann_2, ...)",
        "note: fsdd: val: bob; test: di; train: ann, cy",
    ]
    speakers = {
        part: {one.speaker for one in items.utterances} for part, items in data.parts.items()
    }
    assert speakers == {"train": {"ann", "cy"}, "val": {"bob"}, "test": {"di"}}
    assert [len(data.parts[part]) for part in ("train", "val", "test")] == [30, 4, 6]
    for one in data.parts["train"].utterances:
        names = [Path(path).stem for path in one.path]
        assert [DIGITS[int(name[0])] for name in names] == one.text.split()
        assert all(f"_{one.speaker}_" in name for name in names)
        assert 2 <= len(names) <= 5
    for index in range(5):
        wave, text, name = data.parts["train"][index]
        one = data.parts["train"].utterances[index]
        assert (text, name) == (one.text, one.name)
        assert abs(len(wave) / RATE - one.seconds) < 1e-3
    again = Digits("fsdd", str(tmp_path / "d"), seed=5, **FSDD)
    assert again.utterances == data.utterances  # the strings do not depend on the run's seed
    assert len({one.name for items in data.utterances.values() for one in items}) == 40


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        (
            {"test_speaker": "eve"},
            UserError,
            "test_speaker must be one of ann, bob, cy, di, got 'eve'",
        ),
        ({"test_speaker": "bob"}, ValueError, "must differ, got 'bob'"),
        ({"val_count": 0}, ValueError, "must be at least 1, got 30, 0, 6"),
        ({"speed": (0.1,)}, ValueError, "factors from 0.5 to 2"),
        ({"max_seconds": 200.0}, ValueError, "batch_seconds must be at least 200"),
        (
            {"speed": (0.9, 1.0), "max_seconds": 119.0},
            ValueError,
            "batch_seconds must be at least 132",
        ),
        ({"max_batch": 0}, ValueError, "data.max_batch must be at least 1"),
        ({"name": "mnist"}, ValueError, "data.name must be fsdd, got 'mnist'"),
        ({"kind": "bpe"}, ValueError, "data.kind must be unigram or char"),
    ],
)
def test_bad_arguments_are_one_sentence(options, error, sentence, tmp_path: Path) -> None:
    fsdd(tmp_path / "fsdd", takes=1)
    with pytest.raises(error, match=sentence):
        _ = Digits(**{"name": "fsdd", "data_dir": str(tmp_path), **FSDD, **options}).utterances


def test_strings_are_drawn_once() -> None:
    takes = [
        Utterance(f"{d}{who}", (f"{d}{who}",), 0.5, DIGITS[d], who)
        for d in range(10)
        for who in "ab"
    ]
    assert strings(takes, 8, "x-")[:5] == strings(takes[::-1], 5, "x-")
    assert strings(takes, 8, "x-", 1) != strings(takes, 8, "x-")
    for one in strings(takes, 20):
        assert one.seconds == pytest.approx(0.5 * len(one.path) + GAP * (len(one.path) - 1))
        assert {path[1] for path in one.path} == {one.speaker}


def an4(root: Path, kind: str = ".sph") -> Path:
    (root / "etc").mkdir(parents=True)
    for part, folder in {"train": "an4_clstk", "test": "an4test_clstk"}.items():
        names = [
            f"{folder}/{who}/an{i}-{who}-b" for who in ("fash", "mblw", "mgah") for i in range(2)
        ]
        (root / "etc" / f"an4_{part}.fileids").write_text("\n".join(names) + "\n")
        form = "{} ({})" if part == "test" else "<s> {} </s> ({})"
        rows = [form.format("ENTER ++NOISE++ five", Path(name).name) for name in names]
        (root / "etc" / f"an4_{part}.transcription").write_text("\n".join(rows) + "\n")
        for name in names:
            path = root / "wav" / f"{name}{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == ".raw":
                path.write_bytes(np.arange(8000, dtype=">i2").tobytes())
            else:
                soundfile.write(path, np.zeros(8000), RATE, format="NIST", subtype="PCM_16")
    return root


@pytest.mark.parametrize("kind", [".sph", ".raw"])
def test_an4_holds_speakers_back_to_choose_the_epoch(kind, tmp_path: Path) -> None:
    an4(tmp_path / "an4", kind)
    data = read(An4("an4", str(tmp_path), kind="char"))
    speakers = {
        part: {one.speaker for one in items.utterances} for part, items in data.parts.items()
    }
    assert len(speakers["val"]) == 1
    assert speakers["train"] | speakers["val"] == speakers["test"] == {"fash", "mblw", "mgah"}
    assert not speakers["train"] & speakers["val"]
    assert {one.text for one in data.parts["test"].utterances} == {"ENTER FIVE"}
    assert len(data.parts["test"][0][0]) == 8000


def test_an4_that_is_not_whole_is_told(tmp_path: Path) -> None:
    root = an4(tmp_path / "an4")
    (root / "wav" / "an4_clstk" / "fash" / "an0-fash-b.sph").unlink()
    assert read_part(root, "train").notes == [
        "1 utterance with a transcript but no audio (an0-fash-b): left out"
    ]
    (root / "etc" / "an4_test.transcription").write_text("ENTER FIVE\n")
    with pytest.raises(UserError, match=r"an4_test.transcription, line 1: no \(name\) at its end"):
        read_part(root, "test")
    (root / "etc" / "an4_test.fileids").unlink()
    with pytest.raises(UserError, match=r"an4_test.fileids cannot be read: No such file"):
        read_part(root, "test")


def test_own_speech_is_made_and_read(capsys, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    data = read(Own("own", count=20))
    assert [len(data.parts[part]) for part in ("train", "val", "test")] == [20, 2, 2]
    assert capsys.readouterr().err == "note: own: spoken by the built-in formants\n"
    assert data.vocabulary.decode(data.vocabulary.encode("ZERO NINE")) == "ZERO NINE"
    with pytest.raises(ValueError, match=r"data\.count must be at least 10"):
        Own("own", count=3)


def test_too_long_utterances_are_tested_but_not_trained_on(capsys) -> None:
    root = librispeech()
    for part in ("train-clean-100", "test-clean"):
        split(root / "LibriSpeech" / part, {"19-8-0000": (7.0, "HE SAW A B")})
    data = read(LibriSpeech("librispeech_100h", str(root), **SMALL))
    assert "1 utterance with more than 5 s (19-8-0000): not trained on" in capsys.readouterr().err
    assert len(data.parts["train"]) == 10
    assert [batch.names for batch in data.test_dataloader()[0]][-1] == ["19-8-0000"]


def test_unknown_letters_and_crowded_texts_are_counted(capsys) -> None:
    root = librispeech()
    split(
        root / "LibriSpeech" / "dev-clean",
        {"9-8-0000": (1.0, "HE SAW Q"), "9-8-0001": (0.3, "SAW HEB")},
    )
    data = read(LibriSpeech("librispeech_100h", str(root), **SMALL))
    assert capsys.readouterr().err.splitlines() == [
        "note: librispeech_100h: val: 1 utterance with a token outside of the vocabulary "
        "(9-8-0000)",
        "note: librispeech_100h: val: 1 utterance with more tokens than CTC aligns at 25 a second "
        "(9-8-0001)",
    ]
    batch = next(iter(data.val_dataloader()))
    row = batch.tokens[batch.names.index("9-8-0000")].tolist()
    assert row.count(UNKNOWN) == 1


def test_speed_is_drawn_by_the_loader_alike_with_workers() -> None:
    root = str(librispeech())
    speed = (0.9, 1.0, 1.1)

    def epoch(workers: int) -> list[Batch]:
        data = read(
            LibriSpeech("librispeech_100h", root, speed=speed, num_workers=workers, **SMALL)
        )
        data.trainer = None
        return list(data.train_dataloader())

    one, two = epoch(0), epoch(2)
    assert [batch.names for batch in one] == [batch.names for batch in two]
    assert all(torch.equal(a.waves, b.waves) for a, b in zip(one, two, strict=True))
    factors = set()
    for batch in one:
        assert batch.waves.numel() / RATE <= 6.0
        for name, length in zip(batch.names, batch.lengths.tolist(), strict=True):
            seconds = 0.6 + 0.2 * int(name[-1])
            factors.add(round(seconds * RATE / length, 2))
    assert factors == set(speed)
    assert sorted(name for batch in one for name in batch.names) == sorted(
        f"{who}-7-{i:04d}" for who in (19, 26) for i in range(5)
    )


def test_a_file_that_goes_bad_after_the_manifest_is_named() -> None:
    path = sound(Path("a.wav"))
    one = Utterance("a", (str(path),), 1.0, "ONE", "x")
    assert len(Recordings([one])[0][0]) == RATE
    path.write_text("gone")
    with pytest.raises(UnusableAudio, match=r"a\.wav: no audio file"):
        Recordings([one])[0]


def test_waves_are_joined_and_sped() -> None:
    wave = joined([torch.ones(3), 2 * torch.ones(2)])
    assert len(wave) == 5 + round(GAP * RATE)
    assert wave[:3].tolist() == [1, 1, 1]
    assert wave[-2:].tolist() == [2, 2]
    assert not wave[3:-2].any()
    time = torch.arange(RATE) / RATE
    fast = sped(torch.sin(2 * torch.pi * 400 * time), 1.25)
    assert len(fast) == 12800
    assert torch.fft.rfft(fast).abs().argmax() * RATE / 12800 == 500


def test_collate_travels_to_workers_and_refuses_nothing() -> None:
    data = read(Own("own", count=10, engine="formants"))
    collate = pickle.loads(pickle.dumps(data.collate))
    assert isinstance(collate.vocabulary, Vocabulary)
    items = [data.parts["train"][0]]
    assert torch.equal(collate(items).tokens, data.collate(items).tokens)
    with pytest.raises(ValueError, match="at least one utterance"):
        Collate(data.vocabulary)([])


class Names(LightningModule):
    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return batch.names


def test_lightning_predicts_the_test_parts() -> None:
    data = LibriSpeech("librispeech_100h", str(librispeech()), **SMALL)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    found = Trainer(accelerator="cpu", devices=1, **quiet).predict(Names(), data)
    assert [sum(map(len, part)) for part in found] == [3, 4]


@pytest.mark.parametrize("part", ["dev-clean", "train-clean-100"])
def test_archives_are_unpacked_where_the_readers_look(part, tmp_path: Path, monkeypatch) -> None:
    librispeech(tmp_path / "made")
    packed = shutil.make_archive(
        str(tmp_path / part), "gztar", tmp_path / "made", f"LibriSpeech/{part}"
    )
    asked = []

    def fetch(url, path, sha256):
        asked.append((url, sha256))
        return shutil.copy(packed, path)

    monkeypatch.setattr(download, "fetch", fetch)
    root = tmp_path / "data"
    root.mkdir()
    archive = next(one for one in download.SOURCES["librispeech_100h"] if one.folder.endswith(part))
    for _ in range(2):
        assert download.download(archive, root) == root / "LibriSpeech" / part
    assert len(asked) == 1
    assert asked[0][0] == f"https://www.openslr.org/resources/12/{part}.tar.gz"
    assert len(asked[0][1]) == 64
    assert len(list((root / "LibriSpeech" / part).rglob("*.flac"))) == (
        10 if "train" in part else 2
    )
    with pytest.raises(UserError, match="no folder elsewhere"):
        download.download(archive._replace(inside="elsewhere", folder="x"), root)
