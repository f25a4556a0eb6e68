"""The command writes all files, goes on where it was, and refuses bad arguments in a sentence."""

import csv
import json

import pytest
from experiment_kit.errors import UserError

from benchmarks.evidence import __main__ as command
from benchmarks.evidence import minilm, publish, stacks
from benchmarks.evidence.minilm import STEPS
from benchmarks.evidence.publish import PAGE, replace_tables
from benchmarks.evidence.runner import format_csv, read_unit


def measure_two_layers(seed, num_sentences):
    """Rows as of MiniLM, whose weights are no part of the test environment."""
    places = [(0, "input"), *((depth, step) for depth in (1, 2) for step in STEPS)]
    weights = "pretrained" if seed is None else "random"
    return [
        {"weights": weights, "seed": seed, "depth": depth, "step": step,
         "token_cosine": 0.5, "hfc_lfc": 1.25 + depth, "effective_rank": 3.0,
            "smoothing_share": 0.5 if depth else None}
        for depth, step in places
    ]  # fmt: skip


@pytest.fixture
def measured(tmp_path, monkeypatch):
    monkeypatch.setattr(minilm, "measure_layers", measure_two_layers)
    arguments = [f"--store={tmp_path / 'store'}", "--jobs=1", "--quick=true"]
    command.main(arguments)
    return tmp_path / "store", arguments


def test_all_files_are_written_and_measured_once(measured, monkeypatch, capsys):
    store, arguments = measured
    folder = store / "quick"
    text = (folder / "evidence.md").read_text()
    assert "| layer 2 | " in text
    assert "| plain, with residual |" in text
    assert text.count("<!-- begin") == PAGE.read_text().count("<!-- begin")
    for theme in ("light", "dark"):
        assert "<svg" in (folder / "figures" / f"evidence-{theme}.svg").read_text()
    with (folder / "results" / "evidence" / "stacks.csv").open() as file:
        assert {row["stack"] for row in csv.DictReader(file)} == set(stacks.STACKS)

    files = {path: path.read_bytes() for path in folder.rglob("*.csv")}
    monkeypatch.setattr(publish, "write_figures", lambda *_: [])  # takes seconds
    (lost, *_) = (store / "stacks").iterdir()
    lost.write_text("{")  # as after a power cut
    monkeypatch.setattr(minilm, "measure_layers", None)  # every other part would fail at once
    command.main(arguments)
    assert read_unit(lost) is not None
    assert files == {path: path.read_bytes() for path in folder.rglob("*.csv")}


@pytest.mark.parametrize(
    ("part", "files"), [("signs", {"signs.csv"}), ("task", {"task.csv", "trials.csv"})]
)
def test_a_part_alone_writes_its_csv_files(part, files, tmp_path, capsys):
    out = tmp_path / "out"
    command.main(
        [f"--store={tmp_path}", f"--out={out}", "--jobs=1", "--quick=true", f"--parts=[{part}]"]
    )
    assert {path.name for path in out.rglob("*.*")} == files


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("--jobs=-1", "jobs is a number of processes"),
        ("--parts=[]", "parts is empty"),
        ("--parts=[images]", "parts"),
        ("--seed=3", "unrecognized arguments: --seed=3"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(argument, expected, read_error):
    assert expected in read_error(command.main, [argument])


def test_a_page_without_the_marks_of_a_table_is_refused():
    with pytest.raises(UserError, match="table a once, has 0"):
        replace_tables("text", {"a": "new"})


def test_a_table_keeps_backslashes():
    marks = "<!-- begin a -->", "<!-- end a -->"
    assert r"$\omega$" in replace_tables("".join(marks), {"a": r"$\omega$"})


def test_a_csv_file_has_the_values_in_four_digits():
    assert format_csv([{"x": 1 / 3, "y": "plain", "z": 2}]) == "x,y,z\n0.3333,plain,2\n"


def test_damaged_measurements_are_none(tmp_path):
    path = tmp_path / "unit.json"
    assert read_unit(path) is None
    for damaged in ("", "[]", json.dumps({"rows": []})):
        path.write_text(damaged)
        assert read_unit(path) is None
