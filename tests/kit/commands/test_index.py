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


def test_every_printed_table_is_listed_and_settings_are_said_to_be_checked(tables, markdown):
    assert sorted(table.paper.id for table in tables) == sorted(list_tables())
    checked = {table.paper.quantity for table in tables if table.results is None}
    assert checked == {*index.CHECKED}
    assert all(text in markdown for text in index.CHECKED.values())
