"""GLUE and plain files: every layout reads alike, and what is wrong is one sentence."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from attention_nlp.data import Glue
from attention_nlp.data.glue import TASKS
from experiment_kit.errors import UserError

from tests.apps.nlp.small import write_rows

ROWS = [("A cat sat.", "It sat.", 1), ('He said "no.', "She did not.", 0), ("One.", "Two.", 1)]


def write(folder: Path, name: str, split: str = "train") -> None:
    """A tsv file of a task as the benchmark has it."""
    problem = TASKS[name]
    folder.mkdir(parents=True, exist_ok=True)
    columns = ["index", problem.label, *problem.texts, "rest"]
    lines = ["\t".join(map(str, columns))] if not problem.columns else []
    for number, (text, pair, label) in enumerate(ROWS):
        value = problem.labels[label] if problem.labels else str(2.5 * label)
        cells = {"index": number, problem.label: value, "rest": "x"}
        cells |= dict(zip(problem.texts, (text, pair), strict=False))
        if not problem.columns:
            lines.append("\t".join(str(cells[c]) for c in columns))
        else:
            lines.append("\t".join(str(cells.get(c, "gj04")) for c in range(4)))
    (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8-sig")


@pytest.mark.parametrize("name", TASKS)
def test_the_benchmarks_own_files_are_read(name: str, tmp_path) -> None:
    write(tmp_path / TASKS[name].folder, name)
    found = Glue(name, data_dir=str(tmp_path)).read_split("train")
    pairs = len(TASKS[name].texts) == 2
    scale = 2.5 if name == "stsb" else 1
    assert [tuple(example) for example in found] == [
        (text, pair if pairs else None, scale * label) for text, pair, label in ROWS
    ]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", ["cola", "qnli", "stsb"])
def test_files_of_datasets_are_read_alike(name: str, kind: str, tmp_path) -> None:
    hub = TASKS[name].hub_texts
    rows = [dict(zip(hub, (text, pair), strict=False)) | {"label": y} for text, pair, y in ROWS]
    path = write_rows(tmp_path / "glue" / name / "validation.jsonl", rows)
    if kind == "parquet":
        pa.parquet.write_table(pa.Table.from_pylist(rows), path.with_suffix(".parquet"))
        path.unlink()
    found = Glue(name, data_dir=str(tmp_path)).read_split("dev")
    assert [example.text for example in found] == [row[0] for row in ROWS]
    assert [example.target for example in found] == [row[2] for row in ROWS]
    assert {type(e.target) for e in found} == {float if name == "stsb" else int}


def test_the_original_sts_benchmark_has_no_header(tmp_path) -> None:
    folder = tmp_path / "STS-B"
    folder.mkdir()
    (folder / "sts-dev.tsv").write_text("main\tx\t2012\t0000\t4.750\tA child.\tA kid.\n")
    (example,) = Glue("stsb", data_dir=str(tmp_path)).read_split("dev")
    assert tuple(example) == ("A child.", "A kid.", 4.75)


@pytest.mark.parametrize(("name", "wrong"), [("cola", "dev"), ("mnli", "dev_mismatched")])
def test_a_file_that_is_scored_is_looked_into_before_training(name, wrong, tmp_path) -> None:
    folder = tmp_path / TASKS[name].folder
    for split in ("train", "dev", "dev_mismatched"):
        write(folder, name, split)
    Glue(name, data_dir=str(tmp_path), vocab_size=100, val_fraction=0.5).setup("fit")
    with (folder / f"{wrong}.tsv").open("a") as file:
        file.write("cut short\n")
    with pytest.raises(UserError, match=rf"{wrong}\.tsv, row 4: no column"):
        Glue(name, data_dir=str(tmp_path), vocab_size=100, val_fraction=0.5).setup("fit")


def test_rows_of_qqp_that_are_cut_short_are_left_out(tmp_path, capsys) -> None:
    write(tmp_path / "QQP", "qqp")
    with (tmp_path / "QQP" / "train.tsv").open("a") as file:
        file.write("7\thalf a question\n8\t\n")
    assert len(Glue("qqp", data_dir=str(tmp_path)).read_split("train")) == len(ROWS)
    assert "train.tsv: left out 2 rows that are too short" in capsys.readouterr().err


def test_protocols_take_their_parts_from_where_they_say(tmp_path) -> None:
    write(tmp_path / "RTE", "rte", "dev")
    rows = [{"sentence1": f"a {i}", "sentence2": "b", "label": i % 2} for i in range(20)]
    write_rows(tmp_path / "RTE" / "train.jsonl", rows)
    sizes = {}
    for protocol in ("validation", "test"):
        data = Glue("rte", data_dir=str(tmp_path), protocol=protocol, vocab_size=40)
        data.setup("fit")
        sizes[protocol] = {split: len(items) for split, items in data.splits.items()}
    assert sizes["validation"] == {"train": 18, "val": 2, "test": 3}
    assert sizes["test"] == {"train": 20, "val": 3, "test": 3}


def test_mnli_has_a_second_development_set(tmp_path) -> None:
    for split in ("train", "dev_matched", "dev_mismatched"):
        write(tmp_path / "MNLI", "mnli", split)
    data = Glue("mnli", data_dir=str(tmp_path), vocab_size=60)
    data.setup("test")
    first, second = data.test_dataloader()
    assert torch.equal(next(iter(first))[0], next(iter(second))[0])
