"""Every number leads to the config, commit, environment and result of its runs."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from experiment_kit.commands import table as publish
from experiment_kit.commands.config import print_config
from experiment_kit.errors import UserError
from experiment_kit.papers import provenance
from experiment_kit.papers.results import open_results, read_measurement
from experiment_kit.papers.spec import find_spec
from experiment_kit.run import Run

from tests.kit.run_results import make_result, write_scalars

PUBLISHED = Path("docs/results")
STEPS = 100
OLDER_COMMITS = ("unknown", "ecff0d2fe9")  # runs that were published without a result


@pytest.fixture
def cell(spec):
    (found,) = spec.list_cells("small", "validation", [0], ["gfsa"], ["heartbeat"])
    return found


@pytest.fixture
def folder(cell, tmp_path):
    folder = tmp_path / "runs/sequence/heartbeat-uea/gfsa/seed-0-0123456789"
    folder.mkdir(parents=True)
    run = Run(folder)
    nulls = "{max_time: null, check_val_every_n_epoch: null}"  # the second is no default
    run.save_config(f"seed_everything: 0\ntrainer: {nulls}\ndata: {{init_args: {{}}}}\n")
    constant = dict.fromkeys(range(STEPS), 0.5)
    falling = {step: 1 / (step + 1) for step in range(STEPS)}
    write_scalars(folder, {"train/loss": falling, "val/accuracy": constant, "z_layers/3": constant})
    metrics = {"test/accuracy": 0.75}
    run.write_result(make_result(run, cell.experiment, metrics=metrics, epochs=7))
    return folder


@pytest.fixture
def out(spec, cell, folder, tmp_path):
    out = tmp_path / "out"
    publish.publish_table(spec, [read_measurement(cell, folder)], out, [Run(folder)])
    return out


def test_a_run_is_one_line_of_a_few_kilobytes(out, folder, capsys):
    text = (out / "runs.jsonl").read_text()
    assert len(text) < 6000
    run = json.loads(text)
    expected = ("sequence", "heartbeat", "uea", "gfsa", "small", "validation", 0, "0123456789")
    assert tuple(run[name] for name in provenance.NAMES) == expected
    assert run["result"] == json.loads((folder / "result.json").read_text())
    (start,) = run["starts"]
    assert {"python", "versions", "commit", "modified", "machine", "device", "threads"} == {*start}
    assert run["curves"].keys() == {"train/loss", "val/accuracy"}
    curve = run["curves"]["train/loss"]
    assert (len(curve), *[*curve][:: provenance.POINTS - 1]) == (8, "0", str(STEPS - 1))
    print_config(run="01234", results=str(out))
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed == run["config"]
    assert printed["trainer"] == {"check_val_every_n_epoch": None}
    with pytest.raises(UserError, match="has 0 runs of this hash"):
        print_config(run="ffff", results=str(out))
    with pytest.raises(UserError, match="name an app and its overlays, or a published run"):
        print_config()


def test_a_run_that_is_published_again_keeps_what_it_lost_here(out, folder):
    before = (out / "runs.jsonl").read_bytes()
    provenance.publish_runs([folder], out)
    assert (out / "runs.jsonl").read_bytes() == before
    (folder / "environment.yaml").unlink()
    (folder / "efficiency.json").write_text('{"metrics": {"parameters": 3}}')
    provenance.publish_runs([folder], out)
    (run,) = provenance.read_runs(out).values()
    assert run["efficiency"] == {"metrics": {"parameters": 3}}
    assert run["starts"]
    lines = (out / "runs.jsonl").read_text() + before.decode()  # a merge of two branches
    (out / "runs.jsonl").write_text(lines)
    assert [*provenance.read_runs(out)] == ["0123456789"]


def test_one_run_more_leaves_the_published_ones_as_they_are(folder, tmp_path):
    before = provenance.read_runs(PUBLISHED)
    shutil.copy(PUBLISHED / "runs.jsonl", tmp_path)
    provenance.publish_runs([folder], tmp_path)
    after = provenance.read_runs(tmp_path)
    assert {run: after.pop(run) for run in before} == before
    assert [*after] == ["0123456789"]
    assert (tmp_path / "runs.jsonl").read_text().count('"config_of"') > 0.9 * len(before)


def test_the_page_leads_from_the_cell_to_its_runs(out):
    text = (out / "agf-table-1.md").read_text()
    (anchor,) = re.findall(r"\[75\.00 \(1\)\]\(#([^)]*)\)", text)
    section = text.partition("## Runs\n")[2]
    (heading,) = re.findall(r"^### (.*)$", section, re.MULTILINE)
    assert provenance.make_slug(heading) == anchor == "transformer--gfsa-small-validation"
    assert "[runs.jsonl](runs.jsonl)" in section
    (run,) = provenance.read_runs(out).values()
    pattern = r"^\| HB \| 0 \| 75.0000 \| 0123456789 \| (\S+) \| (.*) \|$"
    (line,) = re.findall(pattern, section, re.M)
    assert line[0][:10] == run["starts"][0]["commit"][:10]
    assert re.search(r"torch.*; cpu, \d+ threads?$", line[1])


@pytest.mark.parametrize("damage", ["edit", "cut"])
def test_a_line_that_was_changed_is_named(out, damage):
    path = out / "runs.jsonl"
    text = path.read_text()
    path.write_text({"edit": text.replace("0.75", "0.95"), "cut": text[:-50]}[damage])
    with pytest.raises(UserError, match=f"{path}, line 1,? (is no run|was edited)"):
        provenance.read_runs(out)


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.csv")), ids=lambda path: path.stem)
def test_every_published_run_has_its_config_and_a_result_that_agrees(path):
    results = open_results(PUBLISHED, find_spec(path.stem))
    published = provenance.read_runs(PUBLISHED)
    for line in results.runs.itertuples():
        run, setting = published[line.run], results.spec.setting(line.row, line.column)
        assert run["config"]["seed_everything"] == run["seed"] == line.seed
        if setting.report in run:
            value = run[setting.report]["metrics"][setting.metric] * setting.scale
            assert line.value == pytest.approx(value, abs=1e-3)
        else:
            assert line.commit in OLDER_COMMITS
