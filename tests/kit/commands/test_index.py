"""The index has the measured cells beside the printed ones, and counts for every table."""

from pathlib import Path

from experiment_kit.commands import index
from experiment_kit.papers.values import read_tables

RESULTS = Path("docs/results")


def test_the_published_index_is_what_the_command_writes_and_has_every_printed_table():
    tables = index.read_indexed_tables(RESULTS, {})
    markdown = index.render_index(tables, RESULTS, RESULTS / "index.md")
    assert (RESULTS / "index.md").read_text(encoding="utf-8") == markdown, "make index"
    assert sorted(table.paper.id for table in tables) == sorted(read_tables())
    assert {table.paper.quantity for table in tables if table.results is None} == {*index.CHECKED}
