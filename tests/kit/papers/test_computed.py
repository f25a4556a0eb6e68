"""Columns that are computed from others, and rows that no library has."""

from pathlib import Path

from experiment_kit.papers.render import render_markdown

from tests.kit.conftest import make_results

PLAIN, SCALED = "baseline-cait_xxs", "attnscale-cait_xxs"


def measure(table, *runs):
    names = ("row", "column", "seed", "value")
    return make_results(*(dict(zip(names, run, strict=True)) for run in runs), table=table)


def find_cells(results, row):
    return {c.key: c for c in results.compare_cells("small", "validation") if c.row == row}


def test_a_gain_is_the_mean_difference_over_the_seeds_of_both_rows() -> None:
    values = {PLAIN: (77.0, 78.0, 60.0), SCALED: (77.5, 79.5)}
    runs = [(row, "top1", seed, v) for row, vs in values.items() for seed, v in enumerate(vs)]
    results = measure("attnscale-table-3", *runs)
    gain = find_cells(results, SCALED)["gain"]
    assert (gain.ours, gain.printed, gain.difference) == ("1.00 ± 0.71 (2)", "0.3", "+0.70")
    assert find_cells(results, PLAIN)["gain"].ours == "–"


def test_a_reported_value_stands_beside_our_own_of_the_same_cell() -> None:
    results = measure("attnscale-table-3", (PLAIN, "top1", 0, 77.0), (SCALED, "top1", 1, 78.0))
    reported = find_cells(results, PLAIN)["top1_reported"]
    assert (reported.ours, reported.printed) == ("77.00 (1)", "77.6")
    assert find_cells(results, SCALED)["top1_reported"].ours == "–"  # none is printed
    assert find_cells(results, SCALED)["gain"].ours == "–"  # no seed in common


def test_a_cited_row_says_so_with_its_source() -> None:
    results = measure("attnscale-table-2")
    cells = find_cells(results, "cvt_21")
    assert (cells["top1"].ours, cells["top1"].printed) == ("cited", "82.5")
    assert find_cells(results, "deit_s")["top1"].ours == "–"
    text = render_markdown(measure("attnscale-table-2", ("deit_s", "top1", 0, 79.0)), Path("docs"))
    assert "| CVT-21 | cited<br>32 | cited<br>82.5 |" in text.replace(", layers=21", "")
    assert "Rows that no library has are cited: CVT-21" in text
    assert "Wu et al., 2021" in text
