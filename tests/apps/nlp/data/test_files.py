"""Files of text and tables, whose mistakes are named, and the documentation of Python."""

import pyarrow as pa
import pyarrow.parquet
import pytest
from attention_nlp.data import PythonDocsOrder
from attention_nlp.data.docs import list_sentences, scramble_sentence
from attention_nlp.data.files import load_hub_rows, read_lines, read_table
from experiment_kit.errors import UserError


def test_a_file_that_is_not_utf8_names_its_line(tmp_path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\nt\xe9o\n")
    with pytest.raises(UserError, match="line 2, byte 1: the text is not UTF-8"):
        list(read_lines(path))
    with pytest.raises(UserError, match="does not exist"):
        list(read_lines(tmp_path / "b.txt"))


def test_what_is_no_json_and_no_parquet_is_named(tmp_path) -> None:
    sentences = {"a.jsonl": "line 1: not JSON", "a.parquet": "is not a readable parquet"}
    for name, sentence in sentences.items():
        (tmp_path / name).write_text("{")
        with pytest.raises(UserError, match=sentence):
            read_table(tmp_path / name, ["text"])
    table = pa.Table.from_pylist([{"text": "cat"}])
    pa.parquet.write_table(table, tmp_path / "a.parquet", compression="none", use_dictionary=False)
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole.replace(b"cat", b"c\xe0t"))
    with pytest.raises(UserError, match="is not a readable parquet"):
        read_table(tmp_path / "a.parquet", ["text"])
    (tmp_path / "b.jsonl").write_text('{"label": 1}\n')
    with pytest.raises(UserError, match="row 1: no column 'text' among label"):
        read_table(tmp_path / "b.jsonl", ["text"])


def test_the_hub_out_of_reach_is_one_sentence(monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="set DATA_DIR to the folder that holds"):
        list(load_hub_rows("no-such/data", None, "train"))


def test_sentences_of_the_documentation_are_many_and_scrambled_ones_keep_their_words() -> None:
    found = list_sentences()
    assert len(found) > 1000
    assert len(set(found)) == len(found)
    for text in found[:: len(found) // 50]:
        mixed = scramble_sentence(text)
        assert mixed != text
        assert sorted(mixed[:-1].lower().split()) == sorted(text[:-1].lower().split())


def test_the_documentation_is_split_without_overlap() -> None:
    data = PythonDocsOrder("docs")
    train, dev = ({e.text.lower() for e in data.read_split(split)} for split in ("train", "dev"))
    assert not train & dev
    share = sum(example.target for example in data.read_split("train")) / len(train)
    assert 0.45 < share < 0.55
