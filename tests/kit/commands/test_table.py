"""A table is trained, published and printed; what other machines measured is kept."""

import io
import re
import shlex
import shutil
import zlib
from pathlib import Path

import pandas as pd
import pytest
import yaml
from experiment_kit.commands import search
from experiment_kit.commands import table as publish
from experiment_kit.errors import UserError
from experiment_kit.launch.plan import plan_configs
from experiment_kit.papers import cost, provenance, render
from experiment_kit.papers import results as table_results
from experiment_kit.papers.render import print_table, render_markdown
from experiment_kit.papers.results import open_results
from experiment_kit.papers.spec import find_spec
from experiment_kit.run import Run
from rich.console import Console

from tests.kit.conftest import make_measurement, make_results
from tests.kit.run_results import make_result

PUBLISHED = Path("docs/results")
ACCURACY = {"transformer": (0.70, 0.72), "gfsa": (0.75, 0.77)}


def finish_run(root, experiment, accuracy):
    name = f"seed-{experiment.seed}-{zlib.crc32(experiment.method.encode()):08x}0{experiment.seed}"
    folder = root / "sequence" / f"{experiment.data}-uea" / experiment.method / name
    folder.mkdir(parents=True)
    run = Run(folder)
    (folder / "config.yaml").write_text(f"seed_everything: {experiment.seed}\ndata: {{}}\n")
    run.write_result(make_result(run, experiment, metrics={"test/accuracy": accuracy}))
    return folder


@pytest.fixture(scope="module")
def measured(spec, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    found = []
    for cell in spec.list_cells("small", "validation", [0, 1], [*ACCURACY], ["heartbeat"]):
        folder = finish_run(root, cell.experiment, ACCURACY[cell.row][cell.experiment.seed])
        found.append(table_results.read_measurement(cell, folder))
    return root, found


@pytest.fixture(scope="module")
def published(spec, measured, tmp_path_factory):
    root, measurements = measured
    out = tmp_path_factory.mktemp("out")
    return out, publish.publish_table(spec, measurements, out, Run.find_all(root))


def test_the_commands_of_a_setting_measure_its_cells_and_no_others():
    def list_planned(lines):
        results = make_results(*lines)
        odd = results.runs.iloc[:1].assign(row="$(touch x)")  # as a stranger's file may have it
        results = table_results.TableResults(results.spec, pd.concat([results.runs, odd]))
        for command in render.format_commands(results, "small", "validation"):
            options = dict(word.split("=", 1) for word in shlex.split(command)[2:])
            chosen = dict(re.findall(r"--(\w+)=\[(.*?)\]", options["ARGS"]))
            rows, columns = (chosen[name].split(",") for name in ("rows", "columns"))
            seeds = [*map(int, options["SEED"].split(","))]
            cells = results.spec.list_cells("small", "validation", seeds, rows, columns)
            yield from ((cell.row, cell.column, cell.experiment.seed) for cell in cells)

    cells = {("agf", "heartbeat", 0), ("agf", "heartbeat", 1), ("agf", "pems_sf", 0)}
    cells |= {("gfsa", "heartbeat", 0), ("gfsa", "heartbeat", 1)}
    lines = [{"row": row, "column": column, "seed": seed} for row, column, seed in sorted(cells)]
    planned = [*list_planned(lines)]
    assert {*planned} == cells
    assert len(planned) == len(cells)


def test_publishing_again_changes_no_byte_and_keeps_runs_of_others(spec, measured, published):
    root, measurements = measured
    out, results = published
    assert provenance.read_runs(out).keys() == {*results.runs["run"]}
    files = [out / "agf-table-1.csv", out / "agf-table-1.md", out / "runs.jsonl"]
    before = [path.read_text() for path in files]
    publish.publish_table(spec, measurements, out, Run.find_all(root))
    assert [path.read_text() for path in files] == before
    other = make_measurement(column="pems_sf", profile="paper", protocol="test", value=91.3)
    results = publish.publish_table(spec, [other], out, [])
    assert len(results.runs) == len(measurements) + 1
    text = files[0].read_text()
    assert "agf-table-1,transformer,heartbeat,small,validation,1,72.0000," in text
    assert "agf-table-1,agf,pems_sf,paper,test,0,91.3000,0123456789,unknown,\n" in text


def test_the_terminal_shows_the_measured_cells_beside_the_printed_ones():
    results = make_results({"row": "transformer", "value": 71.0})
    wide, narrow = (Console(file=io.StringIO(), width=n, highlight=False) for n in (150, 40))
    for console in (wide, narrow):
        print_table(results, "small", "validation", console, ())
    assert "…" not in narrow.file.getvalue()
    text = wide.file.getvalue()
    verdict = "not comparable: profile small is not the paper's scale"
    cells = ("Transformer", "HB", "71.00 (1)", "76.1", "−5.10", verdict)
    assert re.search(" +│ ".join(map(re.escape, cells)), text)
    assert "UWGL" not in text


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.csv")), ids=lambda path: path.stem)
def test_every_published_table_renders_as_published(path, tmp_path):
    results = open_results(PUBLISHED, find_spec(path.stem))
    assert render_markdown(results, PUBLISHED) == path.with_suffix(".md").read_text()
    table_results.write_results(tmp_path / path.name, results)
    assert (tmp_path / path.name).read_text() == path.read_text()


@pytest.fixture
def folders(tmp_path):
    return {"out": str(tmp_path / "out"), "folder": str(tmp_path / "runs")}


def list_dry_run(capsys, table: str, **options) -> list[str]:
    publish.make_table(table, dry_run=True, **options)
    return capsys.readouterr().out.splitlines()


def test_a_dry_run_answers_without_data_and_lists_what_would_run(capsys, folders, tmp_path):
    lines = list_dry_run(capsys, "gfsa-table-3", columns=["top1_acc"], **folders)
    assert lines[0] == "gfsa-table-3: profile paper, protocol published, source released"
    assert sum(line.startswith("to train: ") for line in lines) == 26  # the printed rows
    assert any(line.startswith("left out: imagenet_1k: ") for line in lines)
    assert any(line.startswith("fewer than 3 seeds have no verdict") for line in lines)
    cost = {"columns": ["flops_g"], "rows": ["softmax-deit_s-12"]}
    _, line = list_dry_run(capsys, "gfsa-table-9", **folders, **cost)
    assert line.startswith("to measure: ")  # a cost needs no data
    chosen = {"rows": ["bert_tiny-gfsa", "bert_tiny"], "columns": ["cola"]}
    lines = list_dry_run(capsys, "gfsa-table-1", train=False, select=True, **folders, **chosen)
    assert sum(line.startswith("to train: ") for line in lines) == 36
    assert any(line.endswith("(gfsa K=2 w0=-0.05)") for line in lines)
    assert not any("fewer than 3" in line for line in lines)  # nothing is trained
    assert not [*tmp_path.iterdir()]


def test_options_are_selected_on_held_out_samples_and_named_by_rows(folders, monkeypatch, tmp_path):
    def train(runs, options):
        for e, run in runs.items():
            if e.label.endswith("K=4 w0=0.0"):
                continue  # it fails
            run.folder.mkdir(parents=True)
            config = {"seed_everything": e.seed, **plan_configs([e])[e]}
            (run.folder / "config.yaml").write_text(yaml.safe_dump(config))
            is_best = e.protocol == "validation" and e.label.endswith("K=6 w0=-0.01")
            metrics = {"last/matthews": 0.5, "val/score": 0.5 + is_best}
            run.write_result(make_result(run, e, metrics=metrics))
            copy = shutil.copytree(run.folder, run.folder.parents[1] / "old" / run.folder.name)
            Run(copy).write_result(make_result(run, e, metrics={"last/matthews": 0.1}))
        return 0

    pytest.importorskip("optuna", reason="optuna, of experiment-kit[search], is not installed")
    monkeypatch.setattr(publish, "find_absent_data", lambda _: {})
    monkeypatch.setattr(publish, "refuse_absent_weights", lambda *_: None)
    grid = {"model.filter.K": ["4", "6"], "model.filter.w0": ["0.0", "-0.01"]}
    monkeypatch.setattr("experiment_kit.launch.options.read_grid", lambda *_: grid)
    for module in (publish, search):
        monkeypatch.setattr(module, "run_missing", train)
    options = {"rows": ["gfsa-bert_base", "softmax-bert_base"], "columns": ["cola"]}
    with pytest.raises(UserError, match="1 run did not finish"):
        publish.make_table("gfsa-table-1", select=True, **options, **folders)
    text = (tmp_path / "out/gfsa-table-1.csv").read_text()
    assert "gfsa-bert_base-selected,cola,paper,published,2023,50.0000" in text
    results = [run["result"] for run in provenance.read_runs(tmp_path / "out").values()]
    assert {result["metrics"]["last/matthews"] for result in results} == {0.5}
    page = (tmp_path / "out/gfsa-table-1.md").read_text()
    assert "| 2023 | 50.0000 (K=6, w0=-0.01) |" in page
    assert "TABLE=gfsa-table-1 SELECT=true SEED=2023" in page


def test_absent_weights_are_one_sentence_before_training(folders, monkeypatch):
    def refuse_download(*_, **__):
        raise UserError("no network")

    monkeypatch.setattr(publish, "find_absent_data", lambda _: {})
    monkeypatch.setattr(cost.download, "fetch_hub_files", refuse_download)
    monkeypatch.setattr(publish, "run_missing", lambda *_: pytest.fail("trained"))
    sentence = "attnscale-table-3: no weights of cait_s24, cait_xxs24: allpass weights cait_s24"
    with pytest.raises(UserError, match=sentence) as error:
        publish.make_table("attnscale-table-3", **folders)
    assert error.value.code == 2


def test_a_table_of_absent_data_measures_nothing_and_says_so(folders, monkeypatch, tmp_path):
    monkeypatch.setattr(publish, "run_missing", lambda *_: pytest.fail("trained"))
    with pytest.raises(UserError, match="gfsa-table-4: no cell is measured, and") as error:
        publish.make_table("gfsa-table-4", **folders)
    assert error.value.code == 1
    assert not [*(tmp_path / "out").iterdir()]


@pytest.mark.parametrize(("options", "sentence"), [
    ({"source": "code"}, "There is no source named 'code'; allowed: paper, text, released."),
    ({"source": "text", "rows": ["agf"]}, "--rows and --source both choose rows: name one of them"),
    ({"protocol": "tets"}, "There is no protocol of agf-table-1 named 'tets' (did you mean test?)"),
    ({"select": True}, "--select: agf-table-1 selects nothing on a validation split"),
])  # fmt: skip
def test_a_mistake_is_one_sentence(options, sentence):
    with pytest.raises(UserError, match="^" + re.escape(sentence)) as error:
        publish.make_table("agf-table-1", dry_run=True, **options)
    assert "\n" not in str(error.value)
