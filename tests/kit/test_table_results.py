import math
import os
from dataclasses import replace

import pandas as pd
import pytest
from experiment_kit import tables
from experiment_kit.errors import UserError
from experiment_kit.tables.results import ALL, COLUMNS, KEY
from hypothesis import given, settings
from hypothesis import strategies as st


def measured(row, column, value, seed=0, profile="small", protocol="validation"):
    run = f"runs/{column}/{row}/seed-{seed}"
    return tables.Measurement(row, column, profile, protocol, seed, 100 * value, run)


def cell(frame, row, column, **where):
    for name, value in {"row": row, "column": column, **where}.items():
        frame = frame[frame[name] == value]
    (record,) = frame.to_dict("records")
    return record


def test_seeds_are_aggregated_in_the_papers_unit_and_missing_is_not_zero(spec, paper):
    values = [measured("agf", "heartbeat", v, seed) for seed, v in [(2, 0.9), (0, 0.7), (1, 0.8)]]
    frame = tables.aggregate(spec, paper, values)
    assert [*frame.columns] == ALL
    assert len(frame) == (11 + 5) * 11
    agf = cell(frame, "agf", "heartbeat")
    assert (agf["seeds"], agf["mean"], agf["std"], agf["paper"]) == ("0 1 2", 80.0, 10.0, 79.0)
    assert agf["values"] == "70.0000 80.0000 90.0000"
    assert agf["run"].split()[2] == "runs/heartbeat/agf/seed-2"
    others = frame[frame["seeds"] == ""]
    assert len(others) == len(frame) - 1
    assert others["mean"].isna().all()


def test_one_seed_has_no_deviation(spec, paper):
    frame = tables.aggregate(spec, paper, [measured("agf", "heartbeat", 0.8)])
    assert math.isnan(cell(frame, "agf", "heartbeat")["std"])


def test_the_average_needs_every_column(spec, paper):
    values = [
        measured("agf", column, (50 + 10 * i + seed) / 100, seed)
        for i, column in enumerate(spec.columns)
        for seed in (0, 2)
    ]
    whole = cell(tables.aggregate(spec, paper, values), "agf", "average")
    assert (whole["mean"], whole["seeds"]) == (96.0, "0 2")
    assert whole["std"] == round(math.sqrt(2) / math.sqrt(10), 2)
    assert math.isnan(cell(tables.aggregate(spec, paper, values[:-2]), "agf", "average")["mean"])


def test_the_average_is_of_the_seeds_that_all_columns_have(spec, paper):
    first, *rest = spec.columns
    values = [measured("agf", first, 0.1 * seed, seed) for seed in (3, 5, 8)]
    values += [measured("agf", column, 0.9, seed) for column in rest for seed in (5, 6)]
    average = cell(tables.aggregate(spec, paper, values), "agf", "average")
    assert (average["mean"], average["seeds"]) == (86.0, "5")
    values = [value for value in values if value.seed != 5]
    assert math.isnan(cell(tables.aggregate(spec, paper, values), "agf", "average")["mean"])


def test_a_measurement_of_no_cell_is_refused(spec, paper):
    with pytest.raises(UserError, match="did you mean heartbeat"):
        tables.aggregate(spec, paper, [measured("agf", "hartbeat", 0.8)])


def test_a_run_is_written_relative_to_where_the_command_runs(spec, tmp_path, monkeypatch):
    (agf,) = spec.cells("small", "test", [3], ["agf"], ["heartbeat"])
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/result.json").write_text('{"metrics": {"test/accuracy": 0.5}}')
    monkeypatch.chdir(tmp_path)
    assert tables.measure(agf, tmp_path / "runs").run == "runs"


def test_a_run_is_measured_once_it_has_finished(spec, tmp_path):
    (agf,) = spec.cells("small", "test", [3], ["agf"], ["heartbeat"])
    assert tables.measure(agf, tmp_path) is None
    (tmp_path / "result.json").write_text('{"metrics": {"test/accuracy": 0.5}}')
    found = tables.measure(agf, tmp_path)
    assert (found.row, found.column, found.seed, found.value) == ("agf", "heartbeat", 3, 50.0)
    (tmp_path / "result.json").write_text('{"metrics": {"test/loss": 0.5}}')
    with pytest.raises(UserError, match=r"no metric test/accuracy.*it has test/loss"):
        tables.measure(agf, tmp_path)


def test_a_cost_is_read_from_its_own_file_in_the_papers_unit(spec, tmp_path):
    (agf,) = spec.cells("small", "test", [3], ["agf"], ["heartbeat"])
    flops = replace(agf, source="efficiency", metric="multiply_adds", scale=1e-9)
    (tmp_path / "result.json").write_text('{"metrics": {"test/accuracy": 0.5}}')
    assert tables.measure(flops, tmp_path) is None
    (tmp_path / "efficiency.json").write_text('{"metrics": {"multiply_adds": 4598882304}}')
    found = tables.measure(replace(flops, seed=3), tmp_path)
    assert found.value == pytest.approx(4.598882304)
    assert found.seed == 0  # it replaces what another machine's seed 0 cost


def test_finer_decimals_are_kept_through_the_file(spec, paper, tmp_path):
    finer = replace(spec, digits=4)
    values = [measured("agf", "heartbeat", 0.71234567)]
    frame = tables.aggregate(finer, paper, values)
    assert cell(frame, "agf", "heartbeat")["mean"] == 71.2346
    tables.write_csv(tmp_path / "t.csv", frame, finer.decimals(paper))
    assert b",71.2346,,79.0000," in (tmp_path / "t.csv").read_bytes()
    pd.testing.assert_frame_equal(tables.read_csv(tmp_path / "t.csv"), frame)
    assert "71.2346 (1)<br>79.0 (−7.7654)" in tables.markdown(frame, paper, finer)


TABLES = st.dictionaries(
    st.tuples(*(st.sampled_from(pair) for pair in ("t", "ab", "cd", "ef", "gh"))),
    st.one_of(st.none(), st.decimals(-99, 99, places=2).map(float)),
)


def frame_of(means):
    records = [{**dict(zip(KEY, key, strict=True)), "mean": means[key]} for key in means]
    blank = {"seeds": "0", "values": "", "std": math.nan, "paper": 1.0, "run": "r", "origin": ""}
    return pd.DataFrame(records, columns=ALL).assign(**blank).astype({"mean": float})


def means_of(frame):
    found = {tuple(r[key] for key in KEY): r["mean"] for r in frame.to_dict("records")}
    assert len(found) == len(frame)
    return {key: None if math.isnan(mean) else mean for key, mean in found.items()}


@settings(deadline=None, max_examples=50)
@given(TABLES, TABLES)
def test_merging_loses_nothing_and_merging_again_changes_nothing(old, new):
    merged = tables.merge(frame_of(old), frame_of(new))
    found = means_of(merged)
    assert found.keys() == old.keys() | new.keys()
    for key, mean in found.items():
        assert mean == (old.get(key) if new.get(key) is None else new[key])
    pd.testing.assert_frame_equal(tables.merge(merged, frame_of(new)), merged)


def test_a_csv_reads_back_and_a_second_writing_makes_no_diff(spec, paper, tmp_path):
    values = [measured("agf", "heartbeat", v, seed) for seed, v in enumerate((0.71234, 0.8))]
    frame = tables.aggregate(spec, paper, values)
    path = tmp_path / "t.csv"
    tables.write_csv(path, frame, spec.decimals(paper))
    first = path.read_bytes()
    assert first.splitlines()[0].decode() == ",".join(ALL[:-1])  # no origin
    line = "agf-table-1,agf,heartbeat,small,validation,0 1,71.2340 80.0000,75.62,6.20,79.00,"
    assert line.encode() in first
    read = tables.read_csv(path)
    pd.testing.assert_frame_equal(read, frame)
    shuffled = tables.merge(read.sample(frac=1, random_state=0), frame)
    tables.write_csv(path, tables.arrange(shuffled, spec, paper), spec.decimals(paper))
    assert path.read_bytes() == first


def test_an_interrupted_writing_leaves_the_old_file_and_nothing_else(
    spec, paper, tmp_path, monkeypatch
):
    path = tmp_path / "t.csv"
    path.write_text("old")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tables.write_csv(
            path, tables.aggregate(spec, paper, [measured("agf", "heartbeat", 0.8)]), {}
        )
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]


CELL = "t,a,c,e,g,0 1"


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n1,2\n",
        f"{','.join(COLUMNS)}\n{'x,' * 9}x\n",
        f"{','.join(ALL)}\n{CELL},70.0,70,,70,r s,\n",
        f"{','.join(ALL)}\n{CELL},70.0 80.0,75,7,70,r,\n",
        f"{','.join(ALL)}\n{CELL},70.0 x,75,7,70,r s,\n",
    ],
    ids=["columns", "a mean", "a value too few", "a run too few", "no value"],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UserError, match=r"t\.csv"):
        tables.read_csv(tmp_path / "t.csv")


def test_table_13_of_the_agf_paper_comes_out_of_its_table_1(spec, paper):
    values = [
        measured(row.key, column, row.values[column] / 100)
        for row in paper.rows
        for column in spec.columns
    ]
    found = tables.significance(tables.aggregate(spec, paper, values), spec)
    assert len(found) == 10
    variants = {s.row: s.method for s in found if s.method != "exact"}
    # Only there is a difference zero (SpokenArabicDigits, 100.0 in both rows).
    zeros = "normal approximation without continuity correction, zeros dropped (1)"
    assert variants.pop("primalformer") == zeros
    assert {*variants} == {"performer", "yoso_e", "cosformer", "soft", "flowformer"}
    assert {*variants.values()} == {"exact, of ranks as if none were tied"}
    for s in found:
        assert (s.profile, s.protocol, s.n) == ("small", "validation", 10)
        assert round(s.p_value, 2 if s.row == "soft" else 3) == s.paper


def test_too_few_pairs_are_not_tested(spec, paper):
    values = [
        measured(row, column, 0.1 * i + 0.01 * (row == "agf"))
        for row, columns in {"agf": spec.columns, "gfsa": [*spec.columns][:5]}.items()
        for i, column in enumerate(columns)
    ]
    (found,) = tables.significance(tables.aggregate(spec, paper, values), spec)
    assert (found.row, found.n, found.p_value, found.paper) == ("gfsa", 5, None, None)
