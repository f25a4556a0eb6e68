"""The command writes all files, goes on where it was, and refuses bad arguments in a sentence."""

import csv

import pytest

from benchmarks.evidence import __main__ as command
from benchmarks.evidence import figures, minilm, publish, stacks
from benchmarks.evidence.minilm import STEPS
from benchmarks.evidence.publish import PAGE
from benchmarks.evidence.runner import read_unit


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
    monkeypatch.setattr(figures, "render_figure", lambda draw, theme: draw() and b"<svg")
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


@pytest.mark.parametrize(("argument", "expected"), [
    ("--jobs=-1", "jobs is a number of processes"),
    ("--parts=[]", "parts is empty"),
    ("--parts=[images]", "parts"),
    ("--seed=3", "unrecognized arguments: --seed=3"),
])  # fmt: skip
def test_bad_arguments_are_refused_in_a_sentence(argument, expected, read_error):
    assert expected in read_error(command.main, [argument])
