"""Intervals over seeds and verdicts, on numbers that a reader can check by hand."""

from statistics import NormalDist, fmean

import pytest
from experiment_kit.papers.render import render_markdown
from experiment_kit.papers.results import Measurement, TableResults, collect_results
from experiment_kit.papers.spec import find_spec
from experiment_kit.papers.values import list_tables, load_table
from experiment_kit.papers.verdicts import (
    Interval,
    bootstrap_interval,
    compare_paired_seeds,
    find_tolerance,
    judge_cell,
    judge_cells,
)
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=7)


@given(VALUES, st.floats(-100, 100), st.floats(0.1, 10))
def test_the_interval_holds_the_mean_and_moves_with_the_values(values, shift, scale) -> None:
    found = bootstrap_interval(values, draws=200)
    assert found.mean == pytest.approx(fmean(values))
    assert found == bootstrap_interval(values, draws=200)  # the same draws
    if found.low is None:
        assert found.count == 1
        return
    slack = 1e-6 * (1 + max(map(abs, values)))
    assert min(values) - slack <= found.low <= found.high <= max(values) + slack
    moved = bootstrap_interval([scale * value + shift for value in values], draws=200)
    assert moved.low == pytest.approx(scale * found.low + shift, abs=1e-5)
    assert moved.high == pytest.approx(scale * found.high + shift, abs=1e-5)


def test_the_interval_of_many_seeds_is_that_of_a_normal_mean() -> None:
    normal = NormalDist(5.0, 2.0)
    values = [normal.inv_cdf((i + 0.5) / 100) for i in range(100)]
    found = bootstrap_interval(values)
    assert found.low == pytest.approx(5 - 1.96 * 2 / 10, abs=0.05)
    assert found.high == pytest.approx(5 + 1.96 * 2 / 10, abs=0.05)
    with pytest.raises(ValueError, match="at least one value"):
        bootstrap_interval([])


def test_pairs_are_seeds_that_both_have() -> None:
    assert compare_paired_seeds({0: 1.0}, {1: 1.0}) is None
    found = compare_paired_seeds({0: 5.0, 1: 7.0, 2: 9.0}, {2: 8.0, 1: 6.0, 0: 4.0})
    assert found == Interval(1.0, 3, 1.0, 1.0)  # the seeds differ, the differences do not


@pytest.mark.parametrize(("interval", "printed", "higher", "kind"), [
    (Interval(98.65, 3, 98.2, 98.65), 98.7, True, "within"),  # within by rounding
    (Interval(98.0, 3, 97.9, 98.1), 98.7, True, "worse"),
    (Interval(98.0, 3, 97.9, 98.1), 98.7, False, "better"),
    (Interval(99.0, 3, 98.9, 99.1), 98.7, True, "better"),
    (Interval(99.0, 3, 98.9, 99.1), 98.7, None, "differs"),
    (Interval(98.74, 1), 98.7, True, "within"),
    (Interval(98.76, 1), 98.7, True, "better"),
])  # fmt: skip
def test_a_cell_is_judged_by_its_interval(interval, printed, higher, kind) -> None:
    verdict = judge_cell(interval, printed, 0.05, higher)
    assert verdict.kind == kind
    assert f"{printed:g} ± 0.05" in verdict.reason
    assert ("one seed" in verdict.reason) == (interval.low is None)


def test_the_tolerance_is_what_the_paper_prints() -> None:
    for table in map(load_table, list_tables()):
        for row in table.rows:
            for column, value in row.values.items():
                if column not in table.measurable or not isinstance(value, int | float):
                    continue
                tolerance = find_tolerance(table, row.key, column, value)
                assert tolerance > 0
                if row.std.get(column):
                    assert tolerance == row.std[column]
    agf = load_table("agf-table-1")
    assert find_tolerance(agf, "agf", "japanese_vowels", 99.5) == pytest.approx(0.05)


def make_results(**settings) -> TableResults:
    spec, paper = find_spec("agf-table-1"), load_table("agf-table-1")
    place = {"table": "agf-table-1", "row": "agf", "column": "japanese_vowels", "run": "x"}
    found = [
        Measurement(**place | settings, seed=seed, value=value)
        for seed, value in enumerate((99.4, 99.5, 99.7))
    ]
    return TableResults(spec, paper, collect_results(found, spec, paper))


@pytest.mark.parametrize(("settings", "kind", "word"), [
    ({"profile": "paper", "protocol": "published"}, "within", "3 seeds"),
    ({"profile": "small", "protocol": "published"}, "not comparable", "profile small"),
    ({"profile": "paper", "protocol": "validation"}, "not comparable", "holds data out"),
    ({"profile": "paper", "protocol": "test", "weights_source": "random"},
     "not comparable", "weights are random"),
])  # fmt: skip
def test_what_is_not_as_in_the_paper_is_not_compared(settings, kind, word) -> None:
    results = make_results(**settings)
    verdicts = judge_cells(results, settings["profile"], settings["protocol"])
    ((cell, verdict),) = verdicts.items()
    assert cell == ("agf", "japanese_vowels")
    assert verdict.kind == kind
    assert word in verdict.reason
    assert not judge_cells(results, "smoke", "test")


def test_a_table_lists_its_verdicts_and_counts_what_it_does_not_compare() -> None:
    compared = render_markdown(make_results(profile="paper", protocol="published"))
    assert "| AGF | JV | within | 99.5 ± 0.05 meets 99.4 to 99.7" in compared
    apart = render_markdown(make_results(profile="small", protocol="published"))
    assert "Not comparable: profile small is not the paper's scale (1 cell)." in apart
    assert "| within |" not in apart
