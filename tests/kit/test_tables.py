from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest
import yaml
from experiment_kit import tables
from experiment_kit.errors import UserError

SPEC = Path(__file__).parents[2] / "apps/sequence/papers/agf-table-1.yaml"


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
    assert len(cells) == len(set(cells)) == 2 * 16 * 2
    assert [c.seed for c in cells] == [1] * 32 + [7] * 32
    (agf,) = (c for c in cells if (c.row, c.column, c.seed) == ("agf", "pems_sf", 7))
    assert (agf.method, agf.data, agf.backbone, agf.profile) == ("agf", "pems_sf", "uea", "paper")
    assert agf.args == ("--data.init_args.protocol=test",)
    assert (agf.source, agf.metric, agf.scale) == ("result", "test/accuracy", 100)
    assert spec.cells("small", "validation", [0])[0].args == ()
    assert spec.made["transformer"].method == "plain"


def spec_of(tmp_path, table, text):
    path = tmp_path / f"{table}.yaml"
    path.write_text(f"app: vision\nprotocols: {{test: [--late]}}\n{text}")
    return tables.load_spec(path)


DEPTHS = """
method: plain
metric: test/accuracy
args: [--always]
columns: {layers_12: {}, layers_16: {backbone: "{}_16", args: [--deep]}}
rows:
  softmax-deit_t: {data: imagenet_100, backbone: deit_tiny}
  gfsa-deit_s:
    {data: imagenet_1k, backbone: deit_small, method: gfsa, recipe: long, args: [--row],
     at: {layers_16: {args: [--here]}}}
"""


def test_a_cell_is_the_default_refined_by_its_row_its_column_and_both(tmp_path):
    spec = spec_of(tmp_path, "gfsa-table-12", DEPTHS)
    plain, deeper, gfsa, both = spec.cells("paper", "test", [0])
    assert [c.backbone for c in (plain, deeper)] == ["deit_tiny", "deit_tiny_16"]
    assert [c.backbone for c in (gfsa, both)] == ["deit_small", "deit_small_16"]
    assert (plain.method, plain.data, plain.recipe) == ("plain", "imagenet_100", "")
    assert (both.method, both.data, both.recipe) == ("gfsa", "imagenet_1k", "long")
    assert gfsa.args == ("--always", "--row", "--late")
    assert both.args == ("--always", "--row", "--deep", "--here", "--late")


COSTS = """
data: imagenet_1k
backbone: deit_small
columns:
  flops_g: {source: efficiency, metric: multiply_adds, scale: 1.0e-9}
  top1_acc: {metric: test/accuracy, scale: 100}
rows: {softmax-deit_s-12: plain, gfsa-deit_s-12: gfsa}
"""


def test_what_a_model_costs_has_no_seed(tmp_path):
    cells = spec_of(tmp_path, "gfsa-table-9", COSTS).cells("paper", "test", [4, 5])
    costs = [cell for cell in cells if cell.source == "efficiency"]
    assert [(c.method, c.seed) for c in costs] == [("plain", 4), ("gfsa", 4)]
    assert [c.seed for c in cells if c.source == "result"] == [4, 4, 5, 5]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("data: imagenet_1k", "says no data for row softmax-deit_s-12, column flops_g"),
        ("metric: test/accuracy, ", "says no metric for row softmax-deit_s-12, column top1_acc"),
        ("source: efficiency", "no source in .* named 'cost'"),
        ("backbone: deit_small", "did you mean backbone"),
        ("softmax-deit_s-12: plain", "rows.softmax-deit_s-12, args must be a list of texts"),
        ("gfsa-deit_s-12: gfsa", "did you mean top1_acc"),
    ],
)
def test_a_cell_that_nothing_makes_is_one_sentence(tmp_path, change, sentence):
    new = {
        "source: efficiency": "source: cost",
        "backbone: deit_small": "backbon: deit_small",
        "softmax-deit_s-12: plain": "softmax-deit_s-12: {method: plain, args: --x}",
        "gfsa-deit_s-12: gfsa": "gfsa-deit_s-12: {method: gfsa, at: {top1_ac: {}}}",
    }
    with pytest.raises(UserError, match=sentence) as error:
        spec_of(tmp_path, "gfsa-table-9", COSTS.replace(change, new.get(change, "")))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("table_id", tables.known())
def test_rows_of_the_same_label_are_told_apart(table_id):
    table = tables.load(table_id)
    assert len({*table.labels.values()}) == len(table.rows)
    assert all(table.labels[row.key].startswith(row.label) for row in table.rows)


@pytest.mark.parametrize("table_id", tables.known())
def test_columns_of_the_same_name_are_told_apart(table_id):
    table = tables.load(table_id)
    assert len({*table.headings.values()}) == len(table.columns)


def test_what_a_column_gives_tells_rows_apart_and_is_no_column_to_measure():
    table = tables.load("attnscale-table-1")
    assert [*table.labels.values()][:4:3] == ["DeiT-S, layers=12", "DeiT-S, layers=24"]
    assert not {"layers", "input_size"} & {*table.shown}


def test_numbers_have_the_decimals_of_the_paper_and_at_least_two(tmp_path):
    spec = spec_of(tmp_path, "gfsa-table-9", COSTS)
    paper = tables.load("gfsa-table-20")
    assert {*spec.decimals(paper).values()} == {2}
    assert (paper.columns["runtime"].digits, paper.columns["runtime"].text(551)) == (1, "551")
    finer = spec_of(tmp_path, "gfsa-table-9", f"digits: 4\n{COSTS}")
    assert finer.decimals(paper)["runtime"] == 4


@pytest.mark.parametrize(
    ("chosen", "allowed"),
    [
        ({"rows": ["refomer"]}, "did you mean reformer"),
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
        ({"rows": {"agf": None}}, r"rows.agf must map names to values"),
        ({"columns": ["heartbeet"]}, r"did you mean heartbeat"),
        ({"columns": "heartbeat"}, "columns must be a list"),
        ({"digits": 2.5}, "digits, must be a whole number"),
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
