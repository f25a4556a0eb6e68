"""The index has every printed table with its values, ours beside them, and what is missing."""

from pathlib import Path

import pytest
from experiment_kit.errors import UserError
from experiment_kit.papers import index, index_tables
from experiment_kit.papers.values import list_tables, load_table

RESULTS = Path("docs/results")


@pytest.fixture(scope="module")
def tables():
    return index_tables.read_index(RESULTS)


@pytest.fixture(scope="module")
def markdown(tables):
    return index.render_index(tables, RESULTS, RESULTS / "index.md")


def find_table(tables, name):
    return next(table for table in tables if table.paper.id == name)


def test_the_published_index_is_what_the_command_writes(markdown):
    text = (RESULTS / "index.md").read_text(encoding="utf-8")
    assert text == markdown, "make index"


def test_every_printed_table_has_an_entry_and_a_section_that_it_links_to(tables, markdown):
    assert sorted(table.paper.id for table in tables) == sorted(list_tables())
    for table in tables:
        title = table.paper.title
        assert markdown.count(f"\n### {title}\n") == 1
        anchor = title.lower().replace(",", "").replace(" ", "-")
        assert markdown.count(f"[{title}](#{anchor})") == 1


def test_every_printed_value_is_shown_in_its_row(tables):
    for table in tables:
        shown = [cells for _, cells in table.list_rows()]
        for row, cells in zip(table.paper.rows, shown, strict=False):
            printed = [row.values.get(column) is not None for column in table.paper.columns]
            assert [bool(cell.printed) for cell in cells] == printed


def test_ours_stands_beside_the_printed_value_with_setting_and_verdict(tables):
    table = find_table(tables, "agf-table-1")
    head, rows = [*table.paper.columns], dict(table.list_rows())
    cell = rows["Transformer"][head.index("japanese_vowels")]
    assert cell.printed == "98.7"
    letters = {(s.profile, s.protocol): s.letter for s in table.settings}
    assert len(set(letters.values())) == len(table.settings)
    test, small = letters["paper", "test"], letters["small", "validation"]
    assert (f"98.65 ± 0.38 (2) {test}, within", "transformer-paper-test") in cell.measured
    assert (f"98.29 ± 0.41 (3) {small}", "transformer-small-validation") in cell.measured
    assert table.comparable_cells < table.measured_cells
    assert "Transformer + GFSA" in rows  # of ours, which the paper does not print


def test_what_is_missing_has_the_commands_that_get_it(tables):
    glue = index.list_commands(find_table(tables, "gfsa-table-1"))
    assert "make data DATA=cola" in glue
    assert "make weights MODEL=bert_base" in glue
    chosen = "TABLE=gfsa-table-1 PROTOCOL=test"
    assert glue[-2:] == [f"make plan {chosen}", f"make table {chosen}"]
    cost = index.list_commands(find_table(tables, "agf-table-5"))
    assert [command.split()[1] for command in cost] == ["plan", "table"]  # it needs no data


def test_a_table_without_a_spec_says_why(tables):
    absent = [table for table in tables if table.spec is None]
    assert {t.paper.quantity for t in absent} == {*index.NO_SPEC}
    assert not any(index.list_commands(table) for table in absent)


def test_the_page_has_a_filter_links_to_pages_and_the_reasons_of_absent_data(tables, tmp_path):
    page = tmp_path / "index.html"
    some = [find_table(tables, name) for name in ("agf-table-1", "agf-table-8")]
    index.write_index_page(page, some, RESULTS.resolve(), {("sequence", "heartbeat"): "no <file>"})
    html = page.read_text(encoding="utf-8")
    assert '<input type="search" class="filter">' in html
    assert 'href="#agf-table-8"' in html
    assert 'id="agf-table-8"' in html
    assert "docs/results/agf-table-1.md" in html
    assert "heartbeat: no &lt;file&gt;" in html


def test_mistakes_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match="is no folder"):
        index.make_index(results=str(tmp_path / "absent"))
    with pytest.raises(UserError, match=r"ends in \.md"):
        index.make_index(results=str(tmp_path), out=str(tmp_path / "index.html"))


def test_an_empty_folder_of_results_has_all_tables_and_no_measured_cell(tmp_path):
    tables = index_tables.read_index(tmp_path)
    assert len(tables) == len(list_tables())
    assert not any(table.measured_cells for table in tables)
    text = index.render_index(tables, tmp_path, tmp_path / "index.md")
    assert "0 printed cells are measured" in text
    assert load_table("gfsa-table-16").caption in text
