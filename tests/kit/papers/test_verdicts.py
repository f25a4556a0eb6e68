"""Intervals over seeds and verdicts, on numbers that a reader can check by hand."""

import random
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist, fmean

import pandas as pd
import pytest
from experiment_kit.pages.tables import Estimate
from experiment_kit.papers.cell_statistics import format_pairs, format_statistics
from experiment_kit.papers.markdown import render_markdown
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
    student_interval,
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
    ({"profile": "paper", "protocol": "published"}, "within", "the interval"),
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


def test_student_interval_holds_the_mean_as_often_as_it_says() -> None:
    """The bootstrap of three seeds is their range, and holds the mean three times in four."""
    generator = random.Random(0)
    held = {"student": 0, "bootstrap": 0}
    for _ in range(400):
        seeds = [generator.gauss(0, 1) for _ in range(3)]
        student = student_interval(Estimate.from_values(seeds))
        bootstrap = bootstrap_interval(seeds)
        assert (bootstrap.low, bootstrap.high) == pytest.approx((min(seeds), max(seeds)))
        held["student"] += student.low <= 0 <= student.high
        held["bootstrap"] += bootstrap.low <= 0 <= bootstrap.high
    assert held["student"] / 400 == pytest.approx(0.95, abs=0.03)
    assert held["bootstrap"] / 400 == pytest.approx(0.75, abs=0.05)


def list_statistics(results: TableResults) -> list[dict[str, str]]:
    table = format_statistics(results, *results.settings[0])
    return [dict(zip(table.head, line, strict=True)) for line in table.body]


def test_every_measured_cell_has_mean_deviation_seeds_intervals_and_a_reasoned_verdict() -> None:
    (line,) = list_statistics(make_results(profile="paper", protocol="published"))
    assert (line["method"], line["column"], line["ours"]) == ("AGF", "JV", "99.53 ± 0.15 (3)")
    assert line["Student's t"] == "99.15 to 99.91"  # 99.5333 -+ 4.3027 * 0.1528 / sqrt(3)
    assert line["bootstrap"] == "99.40 to 99.70"
    assert line["verdict"] == "within: the interval meets 99.5 ± 0.05"
    (line,) = list_statistics(make_results(profile="small", protocol="published"))
    assert line["verdict"] == "not comparable: profile small is not the paper's scale"
    results = make_results(profile="paper", protocol="test", row="gfsa")
    assert list_statistics(results)[0]["verdict"] == "no printed value"
    one = replace(results, runs=results.runs[:1])
    assert list_statistics(one)[0]["Student's t"] == list_statistics(one)[0]["bootstrap"] == "–"


def test_equal_seeds_say_that_their_interval_has_no_width() -> None:
    verdict = judge_cell(Interval(98.6, 2, 98.6, 98.6), 99.5, 0.05, True)
    assert verdict.kind == "worse"
    assert "without width as the seeds are equal" in verdict.reason


def test_an_interval_is_compared_as_it_is_shown() -> None:
    results = make_results(profile="paper", protocol="test", row="transformer")
    runs = results.runs.assign(value=98.6486)  # 365 of 370; the paper prints 98.7
    shown = list_statistics(replace(results, runs=runs))[0]
    assert shown["Student's t"] == "98.65 to 98.65"
    assert shown["verdict"].startswith("within: ")


def test_an_average_is_judged_by_the_runs_that_it_is_made_of() -> None:
    paper = load_table("agf-table-1")
    places = [{"column": c, "row": "agf", "protocol": "test", "profile": "paper"}
              for c in paper.columns["average"].over]  # fmt: skip
    found = [
        Measurement(**place, table=paper.id, seed=seed, value=75.08 + seed / 100, run="x")
        for place in places
        for seed in range(3)
    ]
    spec = find_spec(paper.id)
    results = TableResults(spec, paper, collect_results(found, spec, paper))
    verdict = judge_cells(results, "paper", "test")["agf", "average"]
    assert verdict.kind == "within"
    some = [m if m.column != "heartbeat" else replace(m, weights_source="random") for m in found]
    mixed = TableResults(spec, paper, collect_results(some, spec, paper))
    assert judge_cells(mixed, "paper", "test")["agf", "average"].kind == "not comparable"


def test_the_reference_row_is_compared_with_the_others_by_seed() -> None:
    results = make_results(profile="paper", protocol="test")
    other = make_results(profile="paper", protocol="test", row="transformer").runs.copy()
    assert format_pairs(results, "paper", "test") is None  # no other row
    other["value"] -= [1.0, 1.1, 1.2]
    both = replace(results, runs=pd.concat([results.runs, other]))
    table = format_pairs(both, "paper", "test")
    assert table is not None
    assert table.head == ["method", "JV"]
    assert table.body == [
        ["Transformer", "+1.10 (+0.85 to +1.35; 3)"]
    ]  # 1.1 -+ 4.303 * 0.1 / sqrt 3


def test_the_page_of_a_table_has_the_statistics() -> None:
    page = render_markdown(make_results(profile="paper", protocol="published"), Path("docs"))
    assert "| AGF | JV | 99.53 ± 0.15 (3) | 99.15 to 99.91 | 99.40 to 99.70 | within: the" in page
    assert page.count("three in four for three") == 1
