"""Devign and BigCloneBench: every layout of their files, what is refused, what is delivered."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch
from attention_nlp.data.codexglue import BigCloneBench, Devign
from attention_nlp.data.encoding import Example
from hypothesis import given
from hypothesis import strategies as st

from tests.apps.nlp.small import write_rows

CODES = [f"int f{i}(int x)\n{{\n\n\treturn x + {i};\n}}" for i in range(20)]
FLAT = [" ".join(code.split()) for code in CODES]
WORDS = ["false", "true"]


def read_devign(folder: Path, split: str) -> list[Example]:
    return Devign("devign", data_dir=str(folder)).read_split(split)


def read_clones(folder: Path, split: str) -> list[Example]:
    return BigCloneBench("bigclonebench", data_dir=str(folder)).read_split(split)


def make_functions(count: int = 20) -> list[dict]:
    return [{"idx": 3 * i, "func": CODES[i], "target": i % 2} for i in range(count)]


def write_indexed(folder: Path) -> Path:
    (folder / "function.json").write_text(json.dumps(make_functions()))
    for split, chosen in {"train": range(12), "valid": (12, 13), "test": (19, 14)}.items():
        (folder / f"{split}.txt").write_text("\n".join(map(str, chosen)) + "\n\n")
    return folder


def write_by_split(folder: Path, column: str = "func") -> Path:
    rows = [{**row, column: row["func"]} for row in make_functions()]
    for split, chosen in {"train": rows[:12], "valid": rows[12:14], "test": rows[:13:-1]}.items():
        write_rows(folder / f"{split}.jsonl", chosen)
    return folder


def write_pairs(folder: Path) -> Path:
    rows = [{"idx": str(i), "func": code} for i, code in enumerate(CODES)]
    write_rows(folder / "data.jsonl", rows)
    (folder / "train.txt").write_text("".join(f"{i}\t{i + 1}\t{i % 2}\n" for i in range(12)))
    (folder / "valid.txt").write_text("".join(f"{i}\t{i - 1}\t{i % 2}\n" for i in range(1, 11)))
    (folder / "test.txt").write_text("13\t12\t1\n14\t13\t0\n\n")
    return folder


@pytest.mark.parametrize(
    "make", [write_indexed, write_by_split, lambda f: write_by_split(f, "code")]
)
def test_functions_are_read_from_either_layout(tmp_path, make) -> None:
    make(tmp_path)
    assert Devign.find_data("devign", str(tmp_path)).is_relative_to(tmp_path)
    assert read_devign(tmp_path, "train") == [Example(FLAT[i], None, i % 2) for i in range(12)]
    assert [e.target for e in read_devign(tmp_path, "valid")] == [0, 1]
    assert read_devign(tmp_path, "test")[0] == Example(FLAT[19], None, 1)


def test_files_of_the_hub_are_read(tmp_path) -> None:
    labels = [False, True]
    (tmp_path / "train.parquet").touch()
    table = pyarrow.table({"func": CODES[:2], "target": labels})
    pyarrow.parquet.write_table(table, tmp_path / "validation.parquet")
    assert read_devign(tmp_path, "valid") == [Example(FLAT[i], None, i) for i in (0, 1)]
    table = pyarrow.table({"func1": CODES[:2], "func2": CODES[1:3], "label": labels})
    pyarrow.parquet.write_table(table, tmp_path / "validation.parquet")
    assert read_clones(tmp_path, "valid") == [Example(FLAT[i], FLAT[i + 1], i) for i in (0, 1)]


def test_pairs_are_read(tmp_path) -> None:
    write_pairs(tmp_path)
    assert read_clones(tmp_path, "test")[1] == Example(FLAT[14], FLAT[13], 0)
    first, second, *_ = read_clones(tmp_path, "train")
    assert first.pair is second.text  # one text in memory


def make_data(kind, name: str, folder: Path, **kwargs):
    return kind(name, data_dir=str(folder), architecture="roberta", vocab_size=300, **kwargs)


@pytest.mark.parametrize("protocol", ["validation", "test"])
def test_devign_delivers_its_official_parts(tmp_path, protocol) -> None:
    options = {"label_words": WORDS, "max_length": 9, "protocol": protocol}
    data = make_data(Devign, "devign", write_indexed(tmp_path), **options)
    for stage in ("fit", "test"):
        data.setup(stage)
    assert [len(data.splits[p]) for p in ("train", "val", "test")] == [12, 2, 2]
    val, test = (data.collate(list(data.splits[p]))[3].tolist() for p in ("val", "test"))
    assert (val, test) == ([0, 1] if protocol == "validation" else [1, 0], [1, 0])
    ids, mask, _, labels, words = data.collate([data.splits["train"][i] for i in range(3)])
    assert ids.shape == mask.shape == (3, 9)
    assert labels.tolist() == [0, 1, 0]
    for spelled, word in zip(words[0], WORDS, strict=True):
        assert data.tokenizer.decode(spelled[spelled >= 0], skip_special_tokens=True) == word


@given(seed=st.integers(0, 2**32), val_fraction=st.floats(0.1, 0.9))
def test_a_share_of_the_validation_pairs_is_drawn(tmp_path_factory, seed, val_fraction) -> None:
    folder = write_pairs(tmp_path_factory.mktemp("pairs"))
    data = make_data(BigCloneBench, "bigclonebench", folder, seed=seed, val_fraction=val_fraction)
    assert (drawn := data.read_validation()) == data.read_validation()
    assert set(drawn) < set(read_clones(folder, "valid"))
    assert len(drawn) == 2 * min(max(round(5 * val_fraction), 1), 4)


def test_pairs_are_encoded_each_function_once(tmp_path) -> None:
    data = make_data(BigCloneBench, "bigclonebench", write_pairs(tmp_path), max_length=11)
    data.setup("test")
    assert len({id(ids) for pair in data.splits["test"] for ids in pair[:2]}) == 3
    ids, mask, types, labels = data.collate(list(data.splits["test"]))
    assert ids.shape == mask.shape == types.shape == (4, 11)
    assert ids[1].tolist() == data.tokenizer(FLAT[12], truncation=True, max_length=11)["input_ids"]
    assert torch.equal(ids[0], ids[3])  # function 13 is in both pairs
    assert labels.tolist() == [1, 0]
