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


def test_the_finding_and_the_measured_cells_come_first(tables, markdown):
    (counts,) = (table.counts for table in tables if table.paper.id == "agf-table-1")
    assert 0 <= counts[2] < counts[1] < counts[0]
    first = markdown.partition("## AGF")[0]
    assert first.startswith("# All tables\n\n**None of the printed numbers is reproduced or")
    page = "agf-table-1.md#transformer-paper-published_29"
    line = f"AGF paper, Table 1 | Transformer | JV | 98.7 | [98.74 ± 0.16 (3)]({page}) |"
    assert f"| {line} paper, published_29 | not comparable |" in first


def test_every_printed_table_is_counted_and_names_its_protocol(tables, markdown):
    assert sorted(table.paper.id for table in tables) == sorted(list_tables())
    for table in tables:
        protocol = table.results.spec.protocol if table.results else ""
        count = table.counts[0] if table.results else ""
        assert f" | {table.paper.caption} | {protocol} | {count} |" in markdown
    checked = {table.paper.quantity for table in tables if table.results is None}
    assert checked == {*index.CHECKED}
    assert all(text in markdown for text in index.CHECKED.values())
