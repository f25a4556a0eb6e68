"""Intervals over seeds and the comparison with the paper, on numbers checked by hand."""

from dataclasses import replace

import pandas as pd
import pytest
from experiment_kit.pages.tables import MeanDeviation
from experiment_kit.papers.cells import compare_estimate
from experiment_kit.papers.results import TableResults
from experiment_kit.papers.verdicts import format_pairs, format_statistics

from tests.kit.conftest import make_results


@pytest.mark.parametrize(("values", "printed", "higher", "kind"), [
    ([98.4, 98.425, 98.45], 98.5, True, "within"),  # up to 98.49, and 98.5 less 0.05
    ([97.95, 98.0, 98.05], 98.7, True, "worse"),
    ([97.95, 98.0, 98.05], 98.7, False, "better"),
    ([98.95, 99.0, 99.05], 98.7, True, "better"),
    ([98.95, 99.0, 99.05], 98.7, None, "differs"),
    ([98.74], 98.7, True, "within"),
    ([98.76], 98.7, True, "better"),
    ([98.65], 98.7, True, "within"),  # 98.65 + 0.05 is below 98.7
])  # fmt: skip
def test_a_mean_is_compared_by_its_interval(values, printed, higher, kind) -> None:
    found, reason = compare_estimate(MeanDeviation.from_values(values), printed, 0.05, higher)
    assert found == kind
    assert f"{printed:g} ± 0.05" in reason
    assert ("one seed" in reason) == (len(values) == 1)


def measure(**settings) -> TableResults:
    runs = ({"seed": s, "value": v, **settings} for s, v in enumerate((99.4, 99.5, 99.7)))
    return make_results(*({"column": "japanese_vowels", **run} for run in runs))


def find_verdicts(results: TableResults, profile: str, protocol: str) -> dict:
    cells = results.list_cells(profile, protocol)
    return {(cell.row, cell.key): cell for cell in cells if cell.kind}


@pytest.mark.parametrize(("settings", "kind", "word"), [
    ({"profile": "paper", "protocol": "published"}, "within", "the interval"),
    ({"profile": "small", "protocol": "published"}, "not comparable", "profile small"),
    ({"profile": "paper", "protocol": "validation"}, "not comparable", "holds data out"),
    ({"profile": "paper", "protocol": "test", "weights_source": "random"},
     "not comparable", "weights are random"),
])  # fmt: skip
def test_what_is_not_as_in_the_paper_is_not_compared(settings, kind, word) -> None:
    results = measure(**settings)
    verdicts = find_verdicts(results, settings["profile"], settings["protocol"])
    ((cell, verdict),) = verdicts.items()
    assert cell == ("agf", "japanese_vowels")
    assert verdict.kind == kind
    assert word in verdict.reason
    assert not find_verdicts(results, "smoke", "test")


def list_statistics(results: TableResults) -> list[dict[str, str]]:
    table = format_statistics(results, *results.settings[0])
    return [dict(zip(table.head, line, strict=True)) for line in table.body]


def test_every_measured_cell_has_mean_deviation_seeds_intervals_and_a_reasoned_verdict() -> None:
    (line,) = list_statistics(measure(profile="paper", protocol="published"))
    assert (line["method"], line["column"], line["ours"]) == ("AGF", "JV", "99.53 ± 0.15 (3)")
    assert line["Student's t"] == "99.15 to 99.91"  # 99.5333 -+ 4.3027 * 0.1528 / sqrt(3)
    assert line["verdict"] == "within: the interval meets 99.5 ± 0.05"
    (line,) = list_statistics(measure(profile="small", protocol="published"))
    assert line["verdict"] == "not comparable: profile small is not the paper's scale"
    results = measure(profile="paper", protocol="test", row="gfsa")
    assert list_statistics(results)[0]["verdict"] == "no printed value"
    one = replace(results, runs=results.runs[:1])
    assert list_statistics(one)[0]["Student's t"] == "–"


def test_an_average_is_judged_by_the_runs_that_it_is_made_of(paper) -> None:
    runs = [
        {
            "column": c,
            "protocol": "test",
            "profile": "paper",
            "seed": seed,
            "value": 75.08 + seed / 100,
        }
        for c in paper.columns["average"].over
        for seed in range(3)
    ]
    verdict = find_verdicts(make_results(*runs), "paper", "test")["agf", "average"]
    assert verdict.kind == "within"
    mixed = [
        {**run, "weights_source": "random"} if run["column"] == "heartbeat" else run for run in runs
    ]
    verdicts = find_verdicts(make_results(*mixed), "paper", "test")
    assert verdicts["agf", "average"].kind == "not comparable"


def test_the_reference_row_is_compared_with_the_others_by_seed() -> None:
    results = measure(profile="paper", protocol="test")
    other = measure(profile="paper", protocol="test", row="transformer").runs.copy()
    assert format_pairs(results, "agf", "paper", "test").body == []  # no other row
    other["value"] -= [1.0, 1.1, 1.2]
    both = replace(results, runs=pd.concat([results.runs, other]))
    table = format_pairs(both, "agf", "paper", "test")
    assert table.head == ["method", "JV"]
    assert table.body == [
        ["Transformer", "+1.10 (+0.85 to +1.35; 3)"]
    ]  # 1.1 -+ 4.303 * 0.1 / sqrt 3
