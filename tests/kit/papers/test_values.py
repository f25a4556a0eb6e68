"""The printed tables load, and rows and columns that print the same have distinct labels."""

from fractions import Fraction
from itertools import product

import pytest
from experiment_kit.errors import UserError
from experiment_kit.papers.values import list_tables, load_table


@pytest.mark.parametrize("table_id", list_tables())
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


def is_unexplained(table, row, column):
    """Whether rounding of the cells and of the average cannot explain the printed average."""
    over = [row.values[key] for key in table.columns[column].over]
    digits = [len(str(value).partition(".")[2]) for value in (*over, row.values[column])]
    gap = Fraction(str(row.values[column])) - sum(Fraction(str(v)) for v in over) / len(over)
    # YAML drops trailing zeros, so that a cell has the digits of the finest one
    return abs(gap) > Fraction(1, 10 ** max(digits[:-1])) / 2 + Fraction(1, 10 ** digits[-1]) / 2


def test_a_printed_average_that_its_row_contradicts_has_a_note():
    wrong = {
        (table.id, row.label)
        for table in map(load_table, list_tables())
        for row, column in product(table.rows, table.averages)
        if is_unexplained(table, row, column)
    }
    times = ("BERTBASE", "ALBERTBASE", "RoBERTaBASE")
    of_agf = {label for table, label in wrong if table == "agf-table-1"}
    assert of_agf == {"Longformer", "Performer"}
    assert {table for table, _ in wrong} == {"agf-table-1", "gfsa-table-24"}
    assert all(label.split(" ")[0] in times for table, label in wrong if table == "gfsa-table-24")
    for table, label in wrong:
        notes = [note for note in load_table(table).notes if "average" in note]
        assert any(label in note or note.startswith("None of the six") for note in notes)


def test_an_unknown_table_is_answered_with_similar_ones():
    with pytest.raises(UserError, match="agf-table-1l") as error:
        load_table("agf-table-1l")
    assert "agf-table-1" in str(error.value).partition("did you mean")[2]


def test_a_given_column_distinguishes_rows_and_is_not_measured():
    table = load_table("attnscale-table-1")
    assert [*table.labels.values()][:4:3] == ["DeiT-S, layers=12", "DeiT-S, layers=24"]
    assert not {"layers", "input_size"} & {*table.measurable}
