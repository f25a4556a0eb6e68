"""Files of text and tables, whose mistakes are named, and the documentation of Python."""

import pytest
from attention_nlp.data import (
    BigCloneBench,
    Corpus,
    Devign,
    Glue,
    Pretraining,
    PythonDocsOrder,
    SuperGlue,
)
from attention_nlp.data.docs import list_sentences, scramble_sentence
from attention_nlp.data.files import find_hub_table, load_hub_rows
from experiment_kit.errors import UserError

from tests.apps.nlp.small import write_rows

ROW = {"premise": "a", "hypothesis": "b", "label": "neutral"}
FUNCTION, CODE = {"func": "f", "target": 1}, {"idx": 0, "func": "f"}
SST2, STSB, CB = ("sst2", Glue), ("stsb", Glue), ("cb", SuperGlue)
DEVIGN, CLONES = ("devign", Devign), ("bigclonebench", BigCloneBench)
WIKITEXT, TEXTS = ("wikitext-2-raw-v1", Corpus), ("text_files", Pretraining)
DAMAGE = [  # what is wrong with a file, and what is said
    (SST2, {"SST-2/train.tsv": "sentence\tlabel\na"}, "row 1: no column 'label' among sentence"),
    (SST2, {"SST-2/train.jsonl": [{"sentence": None, "label": 1}]}, "sentence is not a text"),
    (SST2, {"SST-2/train.parquet": "{"}, "SST-2/train.parquet is not a readable parquet file"),
    (SST2, {}, "no train.tsv or train.parquet .* in SST-2 or glue/SST-2"),
    (STSB, {"STS-B/train.jsonl": [{"sentence1": "a", "sentence2": "b", "label": None}]},
     "row 1: the score None is not a number from 0"),
    (CB, {"CB/train.jsonl": [ROW | {"label": 3}]}, "the label 3 is none of entailment,"),
    (CB, {}, "no train.jsonl or train.parquet in superglue/CB"),
    (("multirc", SuperGlue), {"MultiRC/train.jsonl": [{"passage": {}}]}, "no column 'questions'"),
    (DEVIGN, {"train.jsonl": [FUNCTION, {"func": "f"}]}, "row 2: no column 'target' among func"),
    (DEVIGN, {"function.json": [[FUNCTION]], "train.txt": "0\n1"}, "there is no function 1"),
    (DEVIGN, {"function.json": [[FUNCTION]]}, "or function.json with train.txt"),
    (CLONES, {"data.jsonl": [CODE], "train.txt": "0\t9\t1"}, "row 1: there is no function 9"),
    (CLONES, {"data.jsonl": [CODE], "train.txt": "0\t0\t3"}, "the label '3' is none of 0, 1"),
    (CLONES, {}, "no data.jsonl or .* in bigclonebench or"),
    (WIKITEXT, {}, "no wiki.train.raw or train.parquet in wikitext-2-raw or"),
    (WIKITEXT, {"wikitext-2-raw/wiki.train.raw": " \n\n"}, "the train split of .* has no text"),
    (TEXTS, {"texts/a.md": ""}, r"no \.txt or \.jsonl file in"),
    (TEXTS, {}, r"no folder texts \(data.text_dir\) in DATA_DIR"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "files", "sentence"), DAMAGE)
def test_damage_of_a_file_is_one_sentence(data, files, sentence, tmp_path) -> None:
    for name, content in files.items():
        path = write_rows(tmp_path / name, content if isinstance(content, list) else [])
        if isinstance(content, str):
            path.write_text(content)
    name, kind = data
    module = kind(name, data_dir=str(tmp_path))
    read = module.read_documents if kind is Pretraining else module.list_training_texts
    with pytest.raises(UserError, match=sentence):
        list(read())


def test_the_hub_out_of_reach_is_one_sentence(monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="is not cached, and the hub does not give it"):
        list(load_hub_rows("no-such/data", None, "train"))


def test_a_cached_table_has_all_its_files(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("attention_nlp.data.files.fetch_hub_files", lambda files, cached: tmp_path)
    (tmp_path / "train-00001-of-00002.parquet").touch()
    assert not find_hub_table("owner/name", ".", "train")
    (tmp_path / "train-00000-of-00002.parquet").touch()
    assert find_hub_table("owner/name", ".", "train") == sorted(tmp_path.iterdir())
    assert not find_hub_table("owner/name", ".", "test")


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
