"""Files of text and tables: mistakes are named with their file and line."""

import pytest
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
    for name, sentence in {
        "a.jsonl": "line 1: not JSON",
        "a.parquet": "is not a readable parquet",
    }.items():
        (tmp_path / name).write_text("{")
        with pytest.raises(UserError, match=sentence):
            read_table(tmp_path / name, ["text"])
    (tmp_path / "b.jsonl").write_text('{"label": 1}\n')
    with pytest.raises(UserError, match="row 1: no column 'text' among label"):
        read_table(tmp_path / "b.jsonl", ["text"])


def test_the_hub_out_of_reach_is_one_sentence(monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="set DATA_DIR to the folder that holds"):
        list(load_hub_rows("no-such/data", None, "train"))
