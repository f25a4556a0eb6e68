"""Intervals over seeds and the comparison with the paper, on numbers checked by hand."""

from dataclasses import replace
from itertools import product

import pandas as pd
import pytest
from experiment_kit.pages.tables import MeanDeviation
from experiment_kit.papers.render import format_pairs, format_statistics, format_tests
from experiment_kit.papers.results import TableResults, compare_estimate, find_tolerance
from experiment_kit.papers.values import load_table

from tests.kit.conftest import make_results


@pytest.mark.parametrize(("values", "printed", "higher", "kind"), [
    ([98.4, 98.425, 98.45], 98.5, True, "within"),  # up to 98.49, and 98.5 less 0.05
    ([97.95, 98.0, 98.05], 98.7, True, "worse"),
    ([97.95, 98.0, 98.05], 98.7, False, "better"),
    ([98.95, 99.0, 99.05], 98.7, True, "better"),
    ([98.95, 99.0, 99.05], 98.7, None, "different"),
])  # fmt: skip
def test_a_mean_is_compared_by_its_interval(values, printed, higher, kind) -> None:
    assert compare_estimate(MeanDeviation.from_values(values), printed, 0.05, higher)[0] == kind


@pytest.mark.parametrize(("table", "row", "column", "data", "tolerance", "origin"), [
    ("attnscale-table-1", "attnscale-deit_s-DeiT-2", "flops_g", "", 0.005, "last digit"),  # 9.10
    ("agf-table-2", "agf", "text", "text_4k", 0.302, "25,000 tests"),
    ("gfsa-table-1", "gfsa-bert_base", "mnli_mm", "mnli", 0.360, "9,832 tests"),
    ("gfsa-table-1", "gfsa-bert_base", "rte", "rte", 2.780, "277 tests"),
    ("gfsa-table-5", "gfsa", "zinc_mae", "zinc", 0.002, "printed deviation"),
    ("gfsa-table-7", "gfsa-codet5_base", "accuracy", "devign_generate", 0.9, "2,732 tests"),
])  # fmt: skip
def test_a_printed_value_may_be_off(table, row, column, data, tolerance, origin) -> None:
    paper = load_table(table)
    found = find_tolerance(paper, row, column, paper.printed_value(row, column), data)
    assert found[0] == pytest.approx(tolerance, rel=0.02)
    assert origin in found[1]


VALUES = (99.4, 99.5, 99.7)
PAPER = {"profile": "paper", "protocol": "published", "commit": "c0ffee"}


def measure(values=VALUES, **settings) -> TableResults:
    runs = ({"seed": s, "value": v, **PAPER, **settings} for s, v in enumerate(values))
    return make_results(*({"column": "japanese_vowels", **run} for run in runs))


def find_verdicts(results: TableResults) -> dict:
    cells = (cell for condition in results.conditions for cell in results.compare_cells(*condition))
    return {(cell.row, cell.key): cell for cell in cells if cell.kind}


@pytest.mark.parametrize(("settings", "kind", "reason"), [
    ({}, "within", "the interval meets 99.5 ± 0.37, the error of sampling 370 tests, as it is "
     "printed of one seed"),
    ({"profile": "small"}, "not comparable", "profile small is not the paper's scale"),
    ({"protocol": "validation"}, "not comparable", "protocol validation is not the paper's, publ"),
    ({"weights_source": "random"}, "not comparable", "weights are random"),
    ({"commit": "unknown"}, "not comparable", "the commit of a run is not recorded"),
    ({"commit": "c0ffee-modified"}, "not comparable", "a run had changes that were not committed"),
    ({"values": (99.4,)}, "not comparable", "one seed has no interval worth a verdict"),
    ({"values": (99.4, 99.6)}, "not comparable", "2 seeds have no interval worth a verdict"),
    ({"values": (99.5,) * 3}, "not comparable", "the interval has no width, as the seeds are eq"),
])  # fmt: skip
def test_a_verdict_needs_the_experiment_three_seeds_and_a_commit(settings, kind, reason) -> None:
    ((cell, verdict),) = find_verdicts(measure(**settings)).items()
    assert cell == ("agf", "japanese_vowels")
    assert (verdict.kind, verdict.reason[: len(reason)]) == (kind, reason)


@pytest.mark.parametrize(("column", "value", "kind"), [
    ("flops_g", 4.57, "within"), ("flops_g", 4.6, "different"), ("throughput", 9, "not comparable"),
])  # fmt: skip
def test_a_count_compares_by_any_protocol_and_other_costs_do_not(column, value, kind) -> None:
    run = PAPER | {"row": "softmax-deit_s-12", "column": column, "value": value, "protocol": "test"}
    (verdict,) = find_verdicts(make_results(run, table="gfsa-table-9")).values()
    ending = "device" if kind == "not comparable" else "half a unit of its last digit"
    assert (verdict.kind, ending in verdict.reason) == (kind, True)


def list_statistics(results: TableResults) -> list[dict[str, str]]:
    head, *lines = format_statistics(results, *results.conditions[0])
    return [dict(zip(head, line, strict=True)) for line in lines]


def test_every_measured_cell_has_mean_deviation_seeds_intervals_and_a_reasoned_verdict() -> None:
    (line,) = list_statistics(measure())
    assert (line["method"], line["column"], line["ours"]) == ("AGF", "JV", "99.53 ± 0.15 (3)")
    assert line["Student's t"] == "99.15 to 99.91"  # 99.5333 -+ 4.3027 * 0.1528 / sqrt(3)
    assert line["verdict"].startswith("within: the interval meets 99.5 ± 0.37")
    results = measure(row="gfsa")
    assert list_statistics(results)[0]["verdict"] == "no printed value"
    assert list_statistics(replace(results, runs=results.runs[:1]))[0]["Student's t"] == "–"


def test_an_average_is_judged_by_the_runs_that_it_is_made_of(paper) -> None:
    places = product(paper.columns["average"].over, range(3))
    runs = [{"column": c, **PAPER, "seed": s, "value": 75.08 + s / 100} for c, s in places]
    assert find_verdicts(make_results(*runs))["agf", "average"].kind == "within"
    mixed = [r | {"commit": "unknown"} if r["column"] == "heartbeat" else r for r in runs]
    assert find_verdicts(make_results(*mixed))["agf", "average"].kind == "not comparable"


@pytest.mark.parametrize(("changes", "text"), [
    ([1.0, 1.1, 1.2], "+1.10 (+0.85 to +1.35; 3)"),  # 1.1 -+ 4.303 * 0.1 / sqrt 3
    ([0.0, 0.0, 0.0], "+0.00 (the same in each seed; 3)"), ([1.0, 1.1], "+1.05 (2)"),
])  # fmt: skip
def test_the_reference_row_is_compared_with_the_others_by_seed(changes, text) -> None:
    results = measure()
    assert len(format_pairs(results, "agf", "paper", "published")) == 1  # no other row
    other = measure(VALUES[: len(changes)], row="transformer").runs
    other["value"] -= changes
    both = replace(results, runs=pd.concat([results.runs, other]))
    lines = format_pairs(both, "agf", "paper", "published")
    assert lines == [["method", "JV"], ["Transformer", text]]


def test_a_test_over_columns_is_exact_without_zeros(spec) -> None:
    places = product((("agf", 51.0), ("gfsa", 50.0)), enumerate([*spec.columns][:7]))
    runs = [{"row": r, "column": c, "value": v if i else 50.0} for (r, v), (i, c) in places]
    lines = format_tests(make_results(*runs), "agf", "small", "validation")
    assert lines[1:] == [["Transformer + GFSA", "7", "0.031"]]  # 2 of the 64 signs of six
