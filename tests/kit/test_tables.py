from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest
import yaml
from experiment_kit import tables
from experiment_kit.errors import UserError

SPEC = Path(__file__).parents[2] / "apps/sequence/tables/agf-table-1.yaml"


@pytest.fixture(scope="module")
def spec():
    return tables.load_spec(SPEC)


@pytest.mark.parametrize("table_id", tables.known())
def test_every_shipped_table_loads_with_distinct_rows_and_no_stray_value(table_id):
    table = tables.load(table_id)
    keys = [row.key for row in table.rows]
    assert len(set(keys)) == len(keys)
    for row in table.rows:
        assert {*row.values} <= {*table.columns}
        assert {*row.std} <= {*row.values}
    for column in table.columns.values():
        assert {*column.over} <= {*table.columns}


def unexplained(table, row, column):
    """Whether rounding of the cells and of the average cannot explain the printed average."""
    over = [row.values[key] for key in table.columns[column].over]
    digits = [len(str(value).partition(".")[2]) for value in (*over, row.values[column])]
    gap = Fraction(str(row.values[column])) - sum(Fraction(str(v)) for v in over) / len(over)
    # Zeros at the end are lost in YAML, so that a cell has the digits of the finest one.
    return abs(gap) > Fraction(1, 10 ** max(digits[:-1])) / 2 + Fraction(1, 10 ** digits[-1]) / 2


def test_a_printed_average_that_its_row_contradicts_has_a_note():
    wrong = {
        (table.id, row.label)
        for table in map(tables.load, tables.known())
        for row, column in product(table.rows, table.averages)
        if unexplained(table, row, column)
    }
    times = ("BERTBASE", "ALBERTBASE", "RoBERTaBASE")
    assert {label for table, label in wrong if table == "agf-table-1"} == {
        "Longformer",
        "Performer",
    }
    assert {table for table, _ in wrong} == {"agf-table-1", "gfsa-table-24"}
    assert all(label.split(" ")[0] in times for table, label in wrong if table == "gfsa-table-24")
    for table, label in wrong:
        notes = [note for note in tables.load(table).notes if "average" in note]
        assert any(label in note or note.startswith("None of the six") for note in notes)


def test_an_unknown_table_is_told_with_its_neighbours():
    with pytest.raises(UserError, match="agf-table-1l") as error:
        tables.load("agf-table-1l")
    assert "agf-table-1" in str(error.value).partition("did you mean")[2]


def test_cells_are_a_whole_table_per_seed_with_the_protocols_arguments(spec):
    cells = spec.cells("paper", "test", [1, 7], columns=["heartbeat", "pems_sf"])
    assert len(cells) == len(set(cells)) == 2 * 7 * 2
    assert [c.seed for c in cells] == [1] * 14 + [7] * 14
    (agf,) = (c for c in cells if (c.row, c.column, c.seed) == ("agf", "pems_sf", 7))
    assert (agf.method, agf.data, agf.backbone, agf.profile) == ("agf", "pems_sf", "uea", "paper")
    assert agf.arguments == ("--data.init_args.protocol=test",)
    assert spec.cells("small", "validation", [0])[0].arguments == ()
    assert spec.methods["transformer"] == "plain"


@pytest.mark.parametrize(
    ("chosen", "allowed"),
    [
        ({"rows": ["reformer"]}, "transformer, agf, gfsa"),
        ({"columns": ["average"]}, "ethanol_concentration"),
        ({"protocol": "tets"}, "validation, test"),
    ],
)
def test_a_cell_that_cannot_be_run_is_told_with_what_can(spec, chosen, allowed):
    with pytest.raises(UserError, match=allowed):
        spec.cells(**{"profile": "small", "protocol": "test", "seeds": [0], **chosen})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rows": {"transfomer": "plain"}}, r"transfomer.*did you mean transformer"),
        ({"rows": {"agf": None}}, "rows must be a list of texts"),
        ({"columns": ["heartbeet"]}, r"did you mean heartbeat"),
        ({"columns": "heartbeat"}, "columns must be a list"),
        ({"extra": {"agf": {"method": "agf", "label": "AGF"}}}, "agf is a row of agf-table-1"),
        ({"extra": {"gfsa": {"method": "gfsa"}}}, r"extra.gfsa lacks label"),
        ({"protocols": {"test": "--x"}}, r"protocols.test must be a list"),
        ({"significance": {"table": "agf-table-13", "row": "afg"}}, "did you mean agf"),
        ({"scale": "100"}, "scale, must be a number"),
        ({"colums": []}, "did you mean columns"),
    ],
)
def test_a_mistake_in_a_spec_is_one_sentence(tmp_path, change, sentence):
    path = tmp_path / SPEC.name
    path.write_text(yaml.safe_dump(yaml.safe_load(SPEC.read_text()) | change))
    with pytest.raises(UserError, match=sentence) as error:
        tables.load_spec(path)
    assert "\n" not in str(error.value)
