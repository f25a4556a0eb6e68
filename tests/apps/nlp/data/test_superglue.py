"""SuperGLUE: both layouts of its files, and rows that are reported."""

from pathlib import Path

import pytest
from attention_nlp.data.encoding import Example
from attention_nlp.data.superglue import TASKS, SuperGlue

from tests.apps.nlp.small import write_rows

SPANS = {"span1_index": 0, "span2_index": 4, "span1_text": "Mark", "span2_text": "He"}
ANSWERS = [{"text": "yes", "idx": 0, "label": 1}, {"text": "no", "idx": 1, "label": 0}]
PASSAGE = {"text": "A b c.", "questions": [{"question": "Is it?", "idx": 0, "answers": ANSWERS}]}
ARCHIVE = {  # a row as the official archive has it, and what becomes of it
    "boolq": ({"question": "is it", "passage": "It is.", "idx": 0, "label": True},
              [Example("is it", "It is.", 1)]),
    "cb": ({"premise": "A b.", "hypothesis": "a", "label": "contradiction", "idx": 0},
           [Example("A b.", "a", 1)]),
    "copa": ({"premise": "It fell.", "choice1": "A", "choice2": "B", "question": "cause",
              "label": 1}, [Example("cause[SEP]It fell.[SEP]A", "B", 1)]),
    "multirc": ({"idx": 0, "version": 1.1, "passage": PASSAGE},
                [Example("Is it?[SEP]A b c.", "yes", 1), Example("Is it?[SEP]A b c.", "no", 0)]),
    "rte": ({"premise": "A b.", "hypothesis": "a", "label": "not_entailment", "idx": 0},
            [Example("A b.", "a", 1)]),
    "wic": ({"word": "bank", "sentence1": "A bank.", "sentence2": "Banks.", "label": False,
             "idx": 0}, [Example("bank[SEP]A bank.", "Banks.", 0)]),
    "wsc": ({"text": "Mark was told. He left", "target": SPANS, "idx": 0, "label": False},
            [Example("Mark was told. He left[SEP]0[SEP]4[SEP]Mark", "He", 0)]),
}  # fmt: skip
HUB = {  # a row as `datasets` has it, where it differs in more than the label
    "multirc": {"paragraph": "A b c.", "question": "Is it?", "answer": "yes", "label": 1},
    "wsc": {"text": "Mark was told. He left", **SPANS, "label": 0},
}


def write(root: Path, name: str, rows: list, split: str = "train") -> SuperGlue:
    write_rows(root / TASKS[name].folder / f"{split}.jsonl", rows)
    return SuperGlue(name, str(root))


@pytest.mark.parametrize("name", ["axb", "axg"])
def test_a_diagnostic_is_scored_by_what_is_trained_on_rte(name: str, tmp_path) -> None:
    rows = [{**dict.fromkeys(TASKS[name].fields, "C d."), "label": "not_entailment", "idx": 0}]
    write_rows(tmp_path / TASKS[name].folder / f"{TASKS[name].folder}.jsonl", rows)
    write(tmp_path, "rte", [ARCHIVE["rte"][0]] * 3)
    data = SuperGlue(name, str(tmp_path))
    assert data.read_split("train") == ARCHIVE["rte"][1] * 3
    assert data.read_split("dev") == [Example("C d.", "C d.", 1)]


@pytest.mark.parametrize("name", ARCHIVE)
def test_the_archive_is_read(name: str, tmp_path) -> None:
    row, examples = ARCHIVE[name]
    write(tmp_path, name, [row, row])
    data = write(tmp_path, name, [row], "val")
    assert data.read_split("train") == examples * 2
    assert data.read_split("dev") == examples


@pytest.mark.parametrize("name", HUB)
def test_rows_of_the_hub_are_read(name: str, tmp_path) -> None:
    data = write(tmp_path, name, [HUB[name]], "validation")
    assert data.read_split("dev") == ARCHIVE[name][1][:1]


def test_spans_are_as_the_text_has_them(tmp_path) -> None:
    row = {"text": "The old man left", "label": True}
    row["target"] = SPANS | {"span1_text": "The old\nman.", "span2_text": "man"}
    (example,) = write(tmp_path, "wsc", [row]).read_split("train")
    assert example.text.endswith("[SEP]The old man")


def test_fields_are_joined_by_the_tokenizers_separator(tmp_path) -> None:
    write(tmp_path, "copa", [ARCHIVE["copa"][0]] * 5)
    data = SuperGlue("copa", str(tmp_path), vocab_size=40, max_length=32)
    text = data.tokenizer.decode(data.encode(data.train_examples)[0][0])
    assert text == "[CLS] cause [SEP] it fell. [SEP] a [SEP] b [SEP]"
    assert "se" not in "".join(data.list_training_texts()).lower().replace("cause", "")
