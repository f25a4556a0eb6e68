"""Seeds that ran on different machines or days, united in the cells of one table."""

import pandas as pd
import pytest
from experiment_kit import tables
from experiment_kit.tables.seeds import laid, summary, written
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.test_table_results import cell, measured


def without_values(frame):
    """As a file from before there were values reads."""
    return frame.assign(values="")


def test_where_an_old_file_has_no_values_one_seed_does_not_replace_three(spec, paper):
    three = [measured("agf", "heartbeat", 0.9, seed) for seed in range(3)]
    old = without_values(tables.aggregate(spec, paper, three))
    new = tables.aggregate(spec, paper, [measured("agf", "heartbeat", 0.1, 7)])
    assert cell(tables.merge(old, new), "agf", "heartbeat")["seeds"] == "0 1 2"
    assert cell(tables.merge(new, old), "agf", "heartbeat")["mean"] == 90.0


def test_seeds_of_two_machines_make_one_table(spec, paper, tmp_path):
    here = [measured("agf", column, 0.70, 0) for column in spec.columns]
    there = [measured("agf", column, 0.70 + 0.1 * s, s) for column in spec.columns for s in (2, 1)]
    tables.publish(spec, paper, here, tmp_path)
    frame = tables.read_csv(tables.publish(spec, paper, there, tmp_path)["csv"])
    at_once = tables.aggregate(spec, paper, [*here, *there])
    pd.testing.assert_frame_equal(frame, at_once)
    assert cell(frame, "agf", "heartbeat")["values"] == "70.0000 80.0000 90.0000"
    average = cell(frame, "agf", "average")
    assert (average["mean"], average["seeds"], average["values"]) == (80.0, "0 1 2", "")


SEEDS = st.dictionaries(st.integers(0, 12), st.decimals(-99, 99, places=4).map(float))


def cell_of(seeds, machine, origin=""):
    values = written((seeds[s] for s in sorted(seeds)), 2)
    runs = " ".join(f"{machine}/{s}" for s in sorted(seeds))
    names = {"seeds": " ".join(map(str, sorted(seeds))), "values": values, "run": runs}
    return {"row": "a", "column": "c", **names, "origin": origin, **summary(values)}


@settings(deadline=None, max_examples=50)
@given(SEEDS, SEEDS.filter(bool))
def test_seeds_unite_and_the_new_value_of_a_seed_wins(old, new):
    found = laid(cell_of(new, "new"), cell_of(old, "old"))
    expected = cell_of(old | new, "old")
    for name in ("seeds", "values"):
        assert found[name] == expected[name]
    for name in ("mean", "std"):
        assert found[name] == pytest.approx(expected[name], nan_ok=True)
    machines = {int(run.split("/")[1]): run.split("/")[0] for run in found["run"].split()}
    assert machines == {seed: "new" if seed in new else "old" for seed in old | new}
    assert laid(cell_of(new, "new"), found) == pytest.approx(found, nan_ok=True)


def test_a_seed_that_is_gone_takes_its_origin_along():
    old = cell_of({0: 1.0, 1: 2.0}, "old", "pretrained: a")
    other = cell_of({1: 3.0}, "new", "pretrained: b")
    assert laid(other, old)["origin"] == "pretrained: a; pretrained: b"
    assert laid(cell_of({0: 3.0, 1: 4.0}, "new", "pretrained: b"), old)["origin"] == "pretrained: b"


def test_seeds_of_random_weights_do_not_unite_with_others():
    old = cell_of({0: 1.0, 1: 2.0}, "old", "random")
    found = laid(cell_of({2: 3.0}, "new", "pretrained: b"), old)
    assert (found["seeds"], found["origin"]) == ("2", "pretrained: b")
