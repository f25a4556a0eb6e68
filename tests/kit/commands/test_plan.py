"""The plan of tables: cells, runs, what is missing, FLOPs and the totals."""

import pytest
from experiment_kit.commands import plan
from experiment_kit.papers.spec import find_spec

from tests.processes import run_allpass

ONE = ("--columns=[japanese_vowels,heartbeat]", "--rows=[transformer,agf]")


@pytest.fixture
def print_plan(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> str:
        run_allpass("plan", *arguments, f"--folder={tmp_path}")
        return capsys.readouterr().out

    return run


def test_the_plan_of_a_table_fits_a_terminal(print_plan) -> None:
    text = print_plan("agf-table-1", *ONE)
    assert text.startswith("agf-table-1: 1 table, 4 cells")  # one seed
    assert "missing data, by allpass data <name>: heartbeat\n" in text  # JapaneseVowels is here
    assert max(map(len, text.splitlines())) <= 80
    assert print_plan("agf-table-1", *ONE) == text  # from the counts that are kept


def test_papers_are_planned_table_by_table(print_plan, monkeypatch) -> None:
    specs = [find_spec("agf-table-7"), find_spec("gfsa-table-5")]
    monkeypatch.setattr(plan, "find_tables", lambda name: specs)
    text = print_plan("all", "--seeds=[0]", "--profile=smoke")
    assert text.startswith("all: 2 tables, ")
    assert text.count("gfsa-table-5") == 1
    assert text.count("in all") == 3  # a sum for each paper, and one of both


@pytest.mark.parametrize(("arguments", "sentence"), [
    (("agf-table-99",), "There is no table or paper named 'agf-table-99' (did you mean"),
    (("agf", "--rows=[agf]"), "--rows and --columns choose from one table: name it"),
])  # fmt: skip
def test_a_mistake_is_one_sentence(arguments, sentence, monkeypatch, read_error, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in read_error(run_allpass, "plan", *arguments)
