"""One line a run: measured, merged by seed, averaged by cell, and never of mixed weights."""

import json
import math
from dataclasses import replace
from itertools import product

import pandas as pd
import pytest
from experiment_kit.errors import UserError
from experiment_kit.launch.plan import EigenvalueOptions
from experiment_kit.pages.tables import MeanDeviation
from experiment_kit.papers import results as table_results
from experiment_kit.papers.results import COLUMNS, add_measurements, read_measurement, read_results
from experiment_kit.papers.values import load_table
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import wilcoxon

from tests.kit.conftest import make_measurement, make_results
from tests.kit.run_results import make_result


def find_estimate(results, column="heartbeat"):
    cells = results.compare_cells("small", "validation")
    return next(c.estimate for c in cells if (c.row, c.key) == ("agf", column))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "seed-3-0123456789"


@pytest.fixture
def cell(spec):
    return spec.list_cells("small", "test", [3], ["agf"], ["heartbeat"])[0]


def write_result(folder, metrics, name="result", **content):
    folder.mkdir(exist_ok=True)
    result = make_result(seed=3, protocol="test") if name == "result" else {}
    (folder / f"{name}.json").write_text(json.dumps({**result, "metrics": metrics, **content}))


def test_a_run_is_measured_in_the_papers_unit_once_it_has_finished(cell, folder):
    assert read_measurement(cell, folder) is None
    write_result(folder, {"test/accuracy": 0.5})
    found = read_measurement(cell, folder)
    names = "row", "column", "seed", "value", "run", "commit", "weights_source"
    expected = ["agf", "heartbeat", 3, 50.0, "0123456789", "unknown", ""]
    assert [found[name] for name in names] == expected
    write_result(folder, {"test/loss": 0.5})
    with pytest.raises(UserError, match="no finite test/accuracy for agf-table-1; it has test/los"):
        read_measurement(cell, folder)


def test_a_cost_is_read_from_its_own_file_and_has_no_seed(cell, folder):
    experiment = replace(cell.experiment, source="efficiency")
    cost = replace(cell, experiment=experiment, metric="multiply_adds", scale=1e-9)
    write_result(folder, {"test/accuracy": 0.5})
    assert read_measurement(cost, folder) is None
    environment = {"commit": "c" * 40, "modified": False}
    write_result(folder, {"multiply_adds": 4598882304}, "efficiency", environment=environment)
    found = read_measurement(cost, folder)
    assert found["value"] == pytest.approx(4.598882304)
    # it replaces the cost of another machine
    assert (found["seed"], found["commit"]) == (0, "c" * 10)


def test_shares_of_other_samples_than_those_of_the_table_are_left_out(cell, folder):
    options = EigenvalueOptions("all")
    experiment = replace(cell.experiment, source="eigenvalues", eigenvalues=options)
    share = replace(cell, experiment=experiment, metric="share", scale=100)
    for samples in ("all", 8):
        given = {"samples": samples, "epoch": "best"}
        write_result(folder, {"share": 0.5}, "eigenvalues", options=given)
        if samples == "all":
            assert read_measurement(share, folder)["value"] == 50
    with pytest.raises(UserError, match="measured with other samples or epoch"):
        read_measurement(share, folder)


def test_a_cell_is_the_mean_and_deviation_of_its_seeds():
    results = make_results(*({"seed": s, "value": v} for s, v in ((2, 90), (0, 70), (1, 80))))
    assert results.runs["seed"].to_list() == [0, 1, 2]
    assert find_estimate(results) == MeanDeviation(80.0, 10.0, 3)
    assert math.isnan(find_estimate(make_results({})).std)


def test_the_average_is_of_the_seeds_that_every_column_has(spec):
    first, *others = spec.columns
    places = product(enumerate(spec.columns), (0, 2))
    values = [{"column": c, "seed": s, "value": 50.0 + 10 * i + s} for (i, c), s in places]
    extra = {"column": first, "seed": 1, "value": 0.0}
    average = find_estimate(make_results(*values, extra), "average")
    assert (average.mean, average.count) == (96.0, 2)
    assert average.std == pytest.approx(math.sqrt(2) / math.sqrt(10))
    assert not find_estimate(make_results(*values[:-2]), "average")
    apart = [{"column": first}, *({"column": column, "seed": 1} for column in others)]
    assert not find_estimate(make_results(*apart), "average")


PLACES = st.tuples(
    st.sampled_from(["agf", "gfsa"]), st.sampled_from(["heartbeat", "pems_sf"]), st.integers(0, 3)
)
VALUES = st.decimals(-99, 99, places=4).map(float)
LINES = st.dictionaries(PLACES, VALUES)


@settings(deadline=None, max_examples=30)
@given(LINES, LINES)
def test_merging_loses_no_run_and_the_new_value_of_a_seed_counts(spec, old, new):
    def list_measurements(lines):
        places = ({"row": r, "column": c, "seed": s, "value": v} for (r, c, s), v in lines.items())
        return [make_measurement(**place) for place in places]

    first = make_results(*list_measurements(old)).runs
    merged = add_measurements(first, list_measurements(new), spec)
    lines = merged[["row", "column", "seed", "value"]].itertuples(index=False, name=None)
    assert {(r, c, s): v for r, c, s, v in lines} == old | new
    assert len(merged) == len(old | new)
    again = add_measurements(merged, list_measurements(new)[::-1], spec)
    pd.testing.assert_frame_equal(again, merged)


def test_a_file_reads_back_with_two_decimals_more_than_the_table(spec, tmp_path):
    for digits, text in ((spec, "71.2346"), (replace(spec, digits=4), "71.234568")):
        results = make_results({"value": 71.23456789}, {"seed": 1, "value": 80.0}, spec=digits)
        path = tmp_path / "t.csv"
        table_results.write_results(path, results)
        head, line, _ = path.read_text().splitlines()
        assert head == ",".join(COLUMNS)
        place = "agf-table-1,agf,heartbeat,small,validation,0"
        assert line == f"{place},{text},0123456789,unknown,"
        pd.testing.assert_frame_equal(read_results(path), results.runs)


HEAD, PLACE = ",".join(COLUMNS), "agf-table-1,agf,heartbeat,small,validation"
GOOD = f"{PLACE},0,70.0,0123456789,unknown,"


@pytest.mark.parametrize("content", [
    f"{HEAD}\n{PLACE},{10**20},1,,,\n", f"{HEAD}\n{GOOD}".replace(",", ";"),
    f"{HEAD}\n\n{GOOD}\n{PLACE},x,70.0,,,\n", f"{HEAD}\n{PLACE},0,nan,,,\n",
])  # fmt: skip
def test_a_bad_file_is_named(tmp_path, content):
    path = tmp_path / "agf-table-1.csv"
    path.write_text(content)
    with pytest.raises(UserError, match=f"{path} cannot be read: "):
        read_results(path)
    path.write_text(f"{HEAD}\n{GOOD}\n{GOOD.replace('70.0', '77.0')}")  # a merge of two branches
    assert read_results(path)["value"].to_list() == [77]


def test_table_13_of_the_agf_paper_follows_from_its_table_1(spec, paper):
    rows = load_table("agf-table-13").rows
    assert len(rows) == 10
    reference = paper.find_row(spec.reference).values
    for row in rows:
        values = paper.find_row(row.key).values
        changes = [round(reference[c] - values[c], 6) for c in spec.columns]
        p = wilcoxon(changes, method="approx" if 0 in changes else "exact").pvalue
        assert round(p, 2 if row.key == "soft" else 3) == row.values["p_value"]
