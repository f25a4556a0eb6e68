"""Every number leads to the config, record, commit and environment of its runs."""

import errno
import json
import os
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml
from experiment_kit.commands import table as publish
from experiment_kit.errors import UserError
from experiment_kit.papers import index, index_tables, provenance
from experiment_kit.papers.markdown import render_markdown
from experiment_kit.papers.results import TableResults, read_measurement, read_results
from experiment_kit.papers.spec import find_spec
from experiment_kit.papers.values import load_table
from experiment_kit.run import Run
from experiment_kit.run_files import compute_digest
from torch.utils.tensorboard import SummaryWriter

from tests.kit.conftest import make_measurement
from tests.kit.run_results import make_result

PUBLISHED = Path("docs/results")
TABLES = sorted(PUBLISHED.glob("*.csv"))
STEPS = 100
OLDER_COMMITS = ("not recorded", "ecff0d2fe9")  # whose runs were published without a record


@pytest.fixture
def cell(spec):
    (found,) = spec.list_cells("small", "validation", [0], ["gfsa"], ["heartbeat"])
    return found


@pytest.fixture
def folder(cell, tmp_path):
    """Finish a run that wrote all its files."""
    folder = tmp_path / "runs/sequence/heartbeat-uea/gfsa/seed-0-0123456789"
    folder.mkdir(parents=True)
    run = Run(folder)
    run.save_config("seed_everything: 0\ndata: {init_args: {}}\n")
    with SummaryWriter(folder / "tensorboard") as writer:
        for step in range(STEPS):
            writer.add_scalar("train/loss", 1 / (step + 1), step)
            writer.add_scalar("val/accuracy", 0.5, step)
            writer.add_scalar("z_layers/3", 0.5, step)
    noise = "a/b/site-packages/lightning/x.py: a warning\n" * 50
    (folder / "log.txt").write_text(f"first\n{noise}\x1b[1mepoch 1\repoch 2\nfinished\n")
    metrics = {"test/accuracy": 0.75}
    run.write_result(make_result(run, cell.experiment, metrics=metrics, epochs=7))
    return folder


@pytest.fixture
def out(spec, paper, cell, folder, tmp_path):
    out = tmp_path / "out"
    publish.publish_table(spec, paper, [read_measurement(cell, folder)], out, tmp_path / "runs")
    return out


def read_table(out):
    path = out / "agf-table-1.csv"
    return TableResults(find_spec(path.stem), load_table(path.stem), read_results(path))


def test_a_record_has_result_environment_curves_and_log_in_a_few_kilobytes(out, folder):
    path = out / "records/0123456789.json"
    record = json.loads(path.read_text())
    assert record["run"] == "seed-0-0123456789"
    assert record["result"] == json.loads((folder / "result.json").read_text())
    (start,) = record["starts"]
    assert {"python", "versions", "commit", "modified", "machine", "device", "threads"} == {*start}
    assert record["curves"].keys() == {"train/loss", "val/accuracy"}
    curve = record["curves"]["train/loss"]
    assert len(curve) == provenance.POINTS
    assert next(iter(curve)) == "0"
    assert [*curve][-1] == str(STEPS - 1)
    assert record["log"] == ["first", "lightning/x.py: a warning", "epoch 2", "finished"]
    assert path.stat().st_size < 6000


def test_a_run_without_log_curves_and_environment_has_a_record(spec, paper, cell, folder, tmp_path):
    for name in ("log.txt", "environment.yaml"):
        (folder / name).unlink()
    record = provenance.collect_record(folder)
    assert (record["starts"], record["log"]) == ([], [])
    provenance.publish_run(folder, tmp_path)
    assert (tmp_path / "records/0123456789.json").is_file()


def test_the_page_leads_from_the_cell_to_the_files_of_its_run(out):
    text = (out / "agf-table-1.md").read_text()
    (anchor,) = re.findall(r"\[75\.00 \(1\)\]\(#([^)]*)\)", text)
    section = text.partition("## Runs\n")[2]
    (heading,) = re.findall(r"^### (.*)$", section, re.MULTILINE)
    assert provenance.make_slug(heading) == anchor == "transformer--gfsa-small-validation"
    links = re.findall(r"\]\(((?:configs|records)/[^)]*)\)", section)
    assert links == ["configs/0123456789.yaml", "records/0123456789.json"]
    assert all((out / link).is_file() for link in links)
    (line,) = provenance.list_run_lines(read_table(out), "small", "validation", out)
    commit = yaml.safe_load((out / "records/0123456789.json").read_text())["starts"][0]["commit"]
    assert line.commit[:10] == commit[:10]
    assert "torch" in line.environment
    assert re.search(r"; cpu, \d+ threads?$", line.environment)


def test_a_line_of_older_code_says_what_was_not_recorded(make_results, tmp_path):
    results = make_results({"commit": "unknown"})
    (line,) = provenance.list_run_lines(results, "small", "validation", tmp_path)
    assert (line.commit, line.environment) == ("not recorded", "not recorded")
    assert line.config is line.record is None
    row = "| HB | 0 | 70.0000 | 0123456789 | not recorded | not recorded | not recorded |"
    assert row in render_markdown(results, tmp_path)


@pytest.mark.parametrize("damage", ["edit", "cut", "kind"])
def test_a_record_that_was_changed_is_named_and_not_shown(out, capsys, damage):
    path = out / "records/0123456789.json"
    text = path.read_text()
    changed = {"edit": text.replace("0.75", "0.95"), "cut": text[:-50], "kind": "[]"}[damage]
    path.write_text(changed)
    (line,) = provenance.list_run_lines(read_table(out), "small", "validation", out)
    assert line.record is None
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: {path} ")


def test_a_run_that_names_a_path_leads_nowhere(make_results, out):
    results = make_results({"run": "../records/0123456789"})
    (line,) = provenance.list_run_lines(results, "small", "validation", out / "configs")
    assert line.config is line.record is None


def test_the_index_leads_to_the_runs_of_the_table(out, tmp_path):
    tables = index_tables.read_index(out)
    markdown = index.render_index(tables, out, tmp_path / "index.md")
    link = "out/agf-table-1.md#transformer--gfsa-small-validation"
    assert f"[75.00 (1) a]({link})" in markdown
    pages = {tmp_path / "p/index.html": "../out/agf-table-1.md",
             tmp_path / "runs/reports/index.html": "agf-table-1.html"}  # fmt: skip
    for page, target in pages.items():
        index.write_index_page(page, tables, out, {})
        address = f"{target}#transformer--gfsa-small-validation"
        assert f'<a href="{address}">75.00 (1) a</a>' in page.read_text()


def test_the_page_leads_to_the_files_of_the_run_or_to_what_is_published(
    spec, paper, out, folder, tmp_path
):
    page = tmp_path / "runs/reports/agf-table-1.html"

    def list_links():
        html = page.read_text()
        assert html.count('id="transformer--gfsa-small-validation"') == 1
        assert html.count('href="#transformer--gfsa-small-validation"') == 2  # few and all cells
        links = [unquote(link) for link in re.findall(r'href="([^"#]+)"', html)]
        assert all((page.parent / link).is_file() for link in links)
        return {Path(link).name for link in links}

    assert list_links() == {"config.yaml", "environment.yaml", "log.txt", "result.json"}
    folder.rename(tmp_path / "elsewhere")
    publish.publish_table(spec, paper, [], out, tmp_path / "runs")
    assert list_links() == {"0123456789.yaml", "0123456789.json"}


def test_nothing_is_lost_where_the_disk_is_full(spec, paper, cell, folder, out, monkeypatch):
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    new = make_measurement(row="agf", run="0123456789", value=99.0)

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left") as caught:
        publish.publish_table(spec, paper, [new], out, folder.parents[3])
    assert caught.value.filename
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_published_run_has_its_config_and_a_record_that_agrees(path):
    results = TableResults(find_spec(path.stem), load_table(path.stem), read_results(path))
    spec = results.spec
    for setting in results.settings:
        for line in provenance.list_run_lines(results, *setting, PUBLISHED):
            assert line.config is not None
            if line.record is None:
                assert line.commit in OLDER_COMMITS
                continue
            record = json.loads(line.record.read_text())
            chosen = spec.setting(line.row, line.column)
            content = record[chosen.source]
            assert content.get("digest", "") in ("", compute_digest(content))
            value = content["metrics"][chosen.metric] * chosen.scale
            assert float(line.value) == pytest.approx(value, abs=1e-3)


def test_rows_whose_names_have_one_slug_are_numbered_as_github_does(make_results, monkeypatch):
    results = make_results({"row": "agf"}, {"row": "agf-released"})
    monkeypatch.setattr(
        type(results.spec), "labels", lambda *_: dict.fromkeys(["agf", "agf-released"], "A+")
    )
    anchors = provenance.make_anchors(results)
    assert [*anchors.values()] == ["a-small-validation", "a-small-validation-1"]


def test_an_edited_record_is_refused_by_name(out):
    path = out / "records/0123456789.json"
    path.write_text(path.read_text().replace("0.75", "0.95"))
    with pytest.raises(UserError, match="was changed after it had been published"):
        provenance.read_record(path)
