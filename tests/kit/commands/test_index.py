"""The index has the measured cells beside the printed ones, and counts for every table."""

from pathlib import Path

import pytest
from experiment_kit.commands import index
from experiment_kit.papers.values import list_tables

RESULTS = Path("docs/results")


@pytest.fixture(scope="module")
def tables():
    return index.read_index(RESULTS, {})


@pytest.fixture(scope="module")
def markdown(tables):
    return index.render_index(tables, RESULTS, RESULTS / "index.md")


def test_the_published_index_is_what_the_command_writes(markdown):
    assert (RESULTS / "index.md").read_text(encoding="utf-8") == markdown, "make index"


def test_the_measured_cells_come_first_with_setting_and_verdict(tables, markdown):
    (counts,) = (table.counts for table in tables if table.paper.id == "agf-table-1")
    assert 0 < counts[2] < counts[1] < counts[0]
    page = "agf-table-1.md#transformer-paper-test"
    line = f"AGF paper, Table 1 | Transformer | JV | 98.7 | [98.65 ± 0.38 (2)]({page}) |"
    assert f"| {line} paper, test | within |" in markdown.partition("## AGF")[0]


def test_every_printed_table_is_counted(tables, markdown):
    assert sorted(table.paper.id for table in tables) == sorted(list_tables())
    for table in tables:
        assert f" | {table.paper.caption} | {table.counts[0]} |" in markdown
    absent = {table.paper.quantity for table in tables if table.results is None}
    assert absent == {*index.NO_SPEC}
    assert all(text in markdown for text in index.NO_SPEC.values())
