"""Own data of each app: read by its overlay, split, and refused in a sentence."""

from pathlib import Path

import pytest
import torch
from attention_graph.data import SmilesCSV
from attention_nlp.data import Corpus, CsvText, Glue, SuperGlue
from attention_nlp.tasks import Classification, Regression
from attention_sequence.data import ListOps
from attention_sequence.module import SequenceClassifier, compute_cross_entropy, split_batch
from attention_speech.data import WavFolder
from attention_vision.module import split_batch as split_images
from experiment_kit.errors import UserError

from tests.apps.speech import corpora


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)  # caches go below the current folder
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    return tmp_path


def test_texts_of_a_csv_file(root: Path, monkeypatch) -> None:
    rows = "".join(f'"so {n}, so",{n},{"good" if n % 2 else "bad"}\n' for n in range(20))
    for name in ("mine.csv", "other.csv"):
        (root / name).write_text(f"text,number,label\n{rows}")
    data = CsvText(file="mine.csv")
    assert (data.num_labels, data.label_names) == (2, ["bad", "good"])
    train, dev = data.read_split("train"), data.read_split("dev")
    assert (len(train), len(dev)) == (16, 4)
    assert not {e.text for e in train} & {e.text for e in dev}
    assert all(e.target == int(e.text.split()[1].strip(",")) % 2 for e in (*train, *dev))
    pairs = CsvText(file="mine.csv", pair_column="number", test_file="other.csv")
    assert pairs.read_split("dev")[3] == ("so 3, so", "3", 1)
    with pytest.raises(UserError, match="leave it out"):
        CsvText(file="mine.csv", test_file="./mine.csv")
    monkeypatch.delenv("DATA_DIR")  # an absolute path needs none
    assert len(CsvText(file=str(root / "mine.csv")).read_split("dev")) == 4


def test_own_splits_that_are_not_read_are_named_once(root: Path, capsys) -> None:
    header = "text,label,set_id,partition,kfold,Usage,is_valid,isTest,data_split\n"
    unread = ["train-valid2.csv", "train2.csv", "test_data.csv", "Testset.jsonl", "validation.tsv"]
    parts = ["train-00000-of-2.csv", "train-00001-of-2.csv", "part-00000.csv", "part-00012.csv"]
    for name in ("train.csv", "test.csv", "latest.csv", *unread, *parts):
        (root / name).write_text(header + "a,x\nb,y\n" * 2)
    data = CsvText(file="train.csv")
    assert len(data.read_split("dev")) == len(data.read_split("train")) == 4
    assert data.list_data_files() == [root / "train.csv", root / "test.csv"]
    said = capsys.readouterr().err
    assert said.count("column partition, kfold, Usage, is_valid, isTest, data_split,") == 2
    assert [*map(said.count, unread)] == [1] * said.count("is not read: one train.csv") == [1] * 5
    for name in parts:
        with pytest.raises(UserError, match="are parts of one table: join them"):
            CsvText(file=name).read_split("dev")


def test_batches_of_own_modules() -> None:
    y, x, mask = torch.arange(4) % 3, torch.ones(4, 5).long(), torch.ones(4, 5).bool()
    text = Classification()
    wrong = [(split_batch, [x, *b]) for b in ([y], [mask, torch.eye(3)[y]], [mask, y.float()])]
    images = torch.ones(4, 3, 2, 2)
    wrong += [(split_images, b) for b in ({"x": x}, [x, y], [images, y, y], [images, y.float()])]
    assert split_images([images, y.bool()])[1].tolist() == [0, 1, 1, 0]
    wrong += [(lambda b: text.predict(None, b), b) for b in ({"ids": x}, [x, mask, x, x])]
    for check, batch in wrong:
        with pytest.raises(UserError, match=r"a batch is .* labels \(B,\)"):
            check(batch)
    for compute in (compute_cross_entropy, text._compute_error):
        with pytest.raises(UserError, match="labels are 0 to 2: Target 3 is out of bounds"):
            compute(torch.zeros(4, 3), y + 1)
    assert Regression()._compute_error(torch.ones(4, 1), y).dtype == torch.float32
    module, series = SequenceClassifier(2, 3, 5, 8, 2, 1).eval(), torch.ones(4, 5, 2)
    assert torch.equal(module(series.double(), mask), module(series, mask))


def test_molecules_of_a_csv_file(root: Path, capsys) -> None:
    rows = "".join(f"{'C' * n},{n - 1e8}\n" for n in range(1, 21))
    (root / "mine.csv").write_text(f"structure,gap,Split\n{rows}")
    data = SmilesCSV(file="mine.csv", smiles_column="structure", target_column="gap")
    assert [len(data.stores[split]) for split in ("train", "val", "test")] == [16, 2, 2]
    assert data.target_mean == data.stores["train"].targets.mean(dtype=float)
    warned = ["a column Split", "float32 rounds its targets: subtract"]
    assert [*map(capsys.readouterr().err.count, warned)] == [1, 1]
    with pytest.raises(UserError, match=r"mine.csv .*smiles"):
        SmilesCSV(file="mine.csv").stores  # noqa: B018
    with pytest.raises(ValueError, match="a tenth of the molecules validates"):
        SmilesCSV(file="mine.csv", val_fraction=0.3).stores  # noqa: B018
    for low, sentence in ((1, "all training targets are 1.0"), (0, "its targets are 0 and 1: th")):
        rows = "".join(f"{'C' * n},{max(low, n % 2)}\n" for n in range(1, 21))
        (root / "mine.csv").write_text(f"smiles,target\n{rows}")
        assert SmilesCSV(file="mine.csv").stores
        assert capsys.readouterr().err.startswith(f"warning: {root}/mine.csv: {sentence}")


def test_recordings_of_a_csv_file(root: Path, capsys) -> None:
    for n in range(12):
        corpora.write_noise(root / f"mine/{n}.wav")
    rows = "".join(f'{n}.wav,"text\n{n}",1\n' for n in range(12))
    (root / "mine/list.csv").write_text(f"file,text,part_Start_s\n{rows}")
    utterances = WavFolder(index="mine/list.csv").read_utterances()
    assert [len(utterances[split]) for split in ("train", "val", "test")] == [10, 1, 1]
    everyone = [one for split in utterances.values() for one in split]
    assert {one.name.removesuffix(".wav") for one in everyone} == set(map(str, range(12)))
    assert "list.csv has part_Start_s, which is not read: recordings" in capsys.readouterr().err
    assert all(one.text == f"text {one.name.removesuffix('.wav')}" for one in everyone)
    (root / "mine/list.csv").write_text("file,text\n0.wav,a\n")
    with pytest.raises(UserError, match=r"list.csv names 1 recordings: three splits take three"):
        WavFolder(index="mine/list.csv").read_utterances()


@pytest.mark.parametrize(("names", "target", "sizes"), [
    ("Train.csv DEV.csv Test.csv", "target", [10, 10, 10]),
    ("a_train.csv a_dev.csv", "y", [8, 1, 1]),
    ("my_train.csv my_valid.csv", "target", [9, 10, 1]),
    ("mytrain.csv mytest.csv train-test.csv", "target", [9, 1, 10]),
    ("training_set.csv testing-data.csv testy_set.csv", "target", [9, 1, 10]),
])  # fmt: skip
def test_splits_beside_a_train_csv_are_read(names, target, sizes, root: Path, capsys) -> None:
    first, *others = names.split()
    for name in (*others, first):
        for n in range(10):
            corpora.write_noise(root / f"{name}{n}.wav")
        rows = "".join(f"{name}{n}.wav,{'C' * (n + 1)},{n}\n" for n in range(10))
        (root / name).write_text(f"file,smiles,{'target' if name == first else target}\n{rows}")
    data = WavFolder(index=first, text_column="target"), SmilesCSV(file=first)
    for splits in (data[0].read_utterances(), data[1].stores):
        assert [len(splits[split]) for split in ("train", "val", "test")] == sizes
    assert len(data[0].list_data_files()) == 11 * len(data[1].list_data_files())
    assert ("dev.csv has no column 'target'" in capsys.readouterr().err) == (target == "y")
    if sizes == [10, 10, 10]:
        (root / "DEV.csv").write_text("file,target\nTrain.csv0.wav,a\n")
        with pytest.raises(UserError, match=r"another split, as .*Train.csv0.wav"):
            data[0].read_utterances()


def test_lines_of_a_file_are_pairs_where_the_data_has_pairs(root: Path, capsys) -> None:
    (root / "mine.csv").write_text("text,more,label\n" + 2 * "a b,c d,good\nb a,d c,bad\n")
    (root / "named.txt").write_text("one\ttwo\n\nthree\tfour\n")
    data = CsvText(file="mine.csv", pair_column="more", vocab_size=64)
    for data.max_length in (7, 6):  # [CLS] a b [SEP] c d [SEP] is cut once
        data.encode(data.train_examples)
    assert capsys.readouterr().err.count("texts are cut after data.max_length=6 tokens") == 1
    names, split = data.read_files([root / "named.txt"])
    assert (names, len(split)) == (["one\ttwo", "three\tfour"], 2)
    assert data.label_names == ["bad", "good"]
    (root / "named.txt").write_text("one\ttwo\nthree\n")
    single = CsvText(file="mine.csv", architecture="gpt2")  # whose tokens have the spaces
    assert len(single.read_files([root / "named.txt"])[1]) == 2
    with pytest.raises(UserError, match="line 2: csv_text takes 2 texts"):
        data.read_files([root / "named.txt"])
    for name in ("mine.csv", "mine.TSV.gz", "mine.ndjson"):
        with pytest.raises(UserError, match=f"{name} may have a header or labels: write a .txt"):
            data.read_files([root / name])
    (root / "named.txt").write_text("a b\n  a b \n")
    assert len({str(item) for item in single.read_files([root / "named.txt"])[1]}) == 1
    assert Glue("rte").label_names == ("entailment", "not_entailment")
    assert SuperGlue("boolq").label_names == ["False", "True"]
    assert SuperGlue("copa").count_fields() == 4


@pytest.mark.parametrize("data", [Corpus("wikitext-2-raw-v1"), ListOps("drawn")])
def test_data_without_an_answer_for_a_file_says_so(data, root: Path) -> None:
    with pytest.raises(UserError, match=f"a run on {data.dataset_name} predicts no files"):
        data.read_files([root])
