"""Random and pretrained weights: told apart in a table, and never mixed in it."""

import io
import json
from pathlib import Path

import pandas
import pytest
from experiment_kit import tables
from experiment_kit.errors import UserError
from experiment_kit.launch import commands
from experiment_kit.tables import view
from rich.console import Console

MARK = "not comparable with the paper: weights are random"
PUBLISHED = Path(__file__).parents[2] / "docs/results"


def measured(origin="", row="agf", seed=0, profile="small", column="heartbeat"):
    place = row, column, profile, "validation", seed
    return tables.Measurement(*place, 70.0 + seed, f"runs/{seed}", origin)


def texts(paths, spec, paper):
    """What a reader is shown: two files and a terminal."""
    shown = terminal(paths["csv"], spec, paper, "small")
    return [paths["md"].read_text(), paths["html"].read_text(), shown]


def terminal(path, spec, paper, profile):
    console = Console(width=200, file=io.StringIO())
    tables.terminal(tables.read_csv(path), paper, spec, profile, "validation", console)
    return " ".join(console.file.getvalue().split())  # lines are wrapped


@pytest.mark.parametrize(
    ("content", "expected"), [({}, ""), ({"origin": "random"}, "random")], ids=["none", "random"]
)
def test_the_origin_of_a_run_comes_with_its_number(spec, tmp_path, content, expected):
    (cell,) = spec.cells("small", "validation", [3], ["agf"], ["heartbeat"])
    result = {"metrics": {"test/accuracy": 0.5}, **content}
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert tables.measure(cell, tmp_path).origin == expected


@pytest.mark.parametrize(
    "pair",
    [
        (measured("random", seed=0), measured("pretrained: bert", seed=1)),
        (measured("random"), measured("pretrained: bert", row="gfsa")),
    ],
    ids=["seeds of a cell", "cells of a profile"],
)
def test_random_and_pretrained_weights_are_not_mixed(spec, paper, tmp_path, pair):
    with pytest.raises(UserError, match="profile small, would mix random and pretrained") as error:
        tables.publish(spec, paper, pair, tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "agf-table-1.csv").exists()


def test_nor_are_they_over_time(spec, paper, tmp_path):
    paths = tables.publish(spec, paper, [measured("random"), measured("random", "gfsa")], tmp_path)
    before = paths["csv"].read_text()
    with pytest.raises(UserError, match="would mix random and pretrained"):
        tables.publish(spec, paper, [measured("pretrained: bert")], tmp_path)
    assert paths["csv"].read_text() == before
    both = [measured("pretrained: bert"), measured("pretrained: bert", "gfsa")]
    tables.publish(spec, paper, both, tmp_path)  # nothing random is left
    assert MARK not in paths["md"].read_text()


@pytest.fixture(scope="module")
def glue():
    return tables.load_spec("apps/nlp/papers/gfsa-table-1.yaml")


@pytest.mark.parametrize("train", [True, False])
def test_rows_of_random_weights_are_made_where_they_are_named(train, tmp_path, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(commands, "make", lambda runs, *_: 0)
    monkeypatch.setattr(commands, "measure", lambda cell, _: seen.append(cell.row))
    monkeypatch.setattr(commands, "whereabouts", lambda *_: tmp_path)
    commands.table("gfsa-table-1", "small", "test", [0], None, ["rte"], out=tmp_path, train=train)
    assert "minilm" in seen
    assert ("bert_tiny" in seen) == (not train)
    assert ("left out: rows of random weights" in capsys.readouterr().out) == train


def test_the_command_of_a_page_names_rows_of_random_weights(glue):
    (cell,) = glue.cells("small", "test", [0], ["bert_tiny"], ["rte"])
    record = {
        "table": glue.table,
        "row": cell.row,
        "profile": "small",
        "protocol": "test",
        "mean": 1,
    }
    command = "make table TABLE=gfsa-table-1 PROFILE=small PROTOCOL=test"
    assert view.command(glue, "small", "test", pandas.DataFrame([record])) == (
        f'{command} ARGS="--rows=[bert_tiny]"'
    )
    assert view.command(glue, "small", "test") == command


@pytest.mark.parametrize("rows", [["minilm", "bert_tiny"], ["minilm"]])
def test_a_mix_is_refused_before_anything_is_trained(glue, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "make", lambda *_: pytest.fail("trained"))
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    monkeypatch.setattr(commands, "whereabouts", lambda *_: tmp_path)
    published = PUBLISHED / "gfsa-table-1.csv"  # which has random weights in profile small
    (tmp_path / published.name).write_text(published.read_text())
    out = tmp_path if rows == ["minilm"] else tmp_path / "new"
    with pytest.raises(UserError, match="profile small, would mix random and pretrained"):
        commands.table("gfsa-table-1", "small", "test", [0], rows, ["rte"], out=str(out))


@pytest.mark.parametrize("other", ["", "random"])
def test_of_what_says_nothing_nothing_is_refused(spec, paper, other):
    frame = tables.aggregate(spec, paper, [measured("random"), measured(other, "gfsa")])
    assert set(frame["origin"]) == {"", "random"}
    two = [measured("pretrained: a"), measured("pretrained: b", seed=1), measured(row="gfsa")]
    assert "pretrained: a; pretrained: b" in set(tables.aggregate(spec, paper, two)["origin"])


def test_a_table_of_random_weights_says_so_wherever_it_is_read(spec, paper, tmp_path):
    paths = tables.publish(spec, paper, [measured("random")], tmp_path)
    assert all(f"Profile small is {MARK}." in text for text in texts(paths, spec, paper))
    again = tables.publish(spec, paper, [], tmp_path)
    assert again["csv"].read_text().splitlines()[0].endswith(",run,origin")
    assert MARK in again["md"].read_text()


@pytest.mark.parametrize("origin", ["", "pretrained: bert"])
def test_a_table_of_other_weights_does_not(spec, paper, tmp_path, origin):
    paths = tables.publish(spec, paper, [measured(origin)], tmp_path)
    assert not any(MARK in text for text in texts(paths, spec, paper))
    assert ("origin" in paths["csv"].read_text()) == bool(origin)


def test_only_the_profile_of_random_weights_is_marked(spec, paper, tmp_path):
    both = [measured("random"), measured("pretrained: bert", profile="paper")]
    paths = tables.publish(spec, paper, both, tmp_path)
    assert paths["md"].read_text().count(MARK) == 1
    assert MARK not in terminal(paths["csv"], spec, paper, "paper")
    assert MARK in terminal(paths["csv"], spec, paper, "small")


def test_a_file_from_before_there_were_origins_reads_and_renders_as_it_did(spec, paper, tmp_path):
    path = PUBLISHED / "agf-table-1.csv"
    frame = tables.read_csv(path)
    assert tables.markdown(frame, paper, spec) == (PUBLISHED / "agf-table-1.md").read_text()
    tables.write_csv(tmp_path / path.name, frame, spec.decimals(paper))
    assert (tmp_path / path.name).read_text() == path.read_text()
