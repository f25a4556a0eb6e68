"""The printed tables load, and rows and columns that print the same have distinct labels."""

import pytest
from experiment_kit.papers.values import load_table, read_tables


@pytest.mark.parametrize("table_id", read_tables())
def test_every_table_has_distinct_rows_labels_and_headings_and_no_stray_value(table_id):
    table = load_table(table_id)
    assert len({row.key for row in table.rows}) == len(table.rows)
    assert len({*table.labels.values()}) == len(table.rows)
    assert len({*table.headings.values()}) == len(table.columns)
    for row in table.rows:
        assert table.labels[row.key].startswith(row.label)
        assert {*row.values} <= {*table.columns}
        assert {*row.std} <= {*row.values}
    for column in table.columns.values():
        assert {*column.over} <= {*table.columns}


def test_a_given_column_distinguishes_rows_and_is_not_measured():
    table = load_table("attnscale-table-1")
    assert [*table.labels.values()][:4:3] == ["DeiT-S, layers=12", "DeiT-S, layers=24"]
    assert not {"layers", "input_size"} & {*table.measurable}
