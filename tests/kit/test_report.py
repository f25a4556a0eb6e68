import json
import re
from dataclasses import replace
from io import StringIO

import numpy as np
import pandas as pd
import pytest
from experiment_kit import tables
from experiment_kit.report import curves, drawings, figures, page
from rich.console import Console
from torch.utils.tensorboard import SummaryWriter

ACCURACY = {"transformer": (0.70, 0.72), "gfsa": (0.75, 0.77)}


def write_scalars(folder, tag, values):
    with SummaryWriter(folder / "tensorboard") as writer:
        for step, value in values.items():
            writer.add_scalar(tag, value, step)


def make_run(root, cell, accuracy, spectral=True):
    run = root / cell.data / cell.method / f"seed-{cell.seed}"
    run.mkdir(parents=True)
    keys = ("app", "data", "backbone", "method", "profile", "protocol", "seed")
    result = {key: getattr(cell, key) for key in keys}
    result["metrics"] = {"test/accuracy": accuracy}
    write_scalars(run, "train/loss", {step: 2 / (step + 1) + cell.seed for step in range(5)})
    if spectral:
        layer = {"hfc_lfc": 1.2, "token_cosine": 0.3, "effective_rank": 14.2}
        profile = {"step": 5, "depth": [layer] * 3, "response": [[1.0, 0.5, 0.2]] * 2}
        (run / "spectral.json").write_text(json.dumps(profile))
    (run / "result.json").write_text(json.dumps(result))
    return run


@pytest.fixture(scope="module")
def measurements(spec, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    found = []
    for cell in spec.cells("small", "validation", [0, 1], [*ACCURACY], ["heartbeat"]):
        run = make_run(root, cell, ACCURACY[cell.row][cell.seed], spectral=cell.row == "gfsa")
        found.append(tables.measure(cell, run))
    return found


@pytest.fixture(scope="module")
def published(spec, paper, measurements, tmp_path_factory):
    return tables.publish(spec, paper, measurements, tmp_path_factory.mktemp("out"))


def test_what_a_resumed_run_wrote_last_counts(tmp_path):
    write_scalars(tmp_path, "val/loss", {10: 1.0, 20: 2.0, 30: 3.0})
    write_scalars(tmp_path, "val/loss", {20: 20.0, 40: 4.0})
    found = curves.scalars(tmp_path)["val/loss"]
    assert found.to_dict() == {10: 1.0, 20: 20.0, 30: 3.0, 40: 4.0}


def test_a_run_that_has_not_finished_is_not_read(tmp_path):
    write_scalars(tmp_path, "val/loss", {10: 1.0})
    assert curves.read("agf", tmp_path) is None


def svgs(html):
    return re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)


def test_the_page_names_no_address_and_stands_alone(published):
    html = published["html"].read_text()
    assert "//" not in html.replace("<!--", "")
    assert not re.search(r"<(script|link|img|iframe)\b|@import|url\((?!#)", html)


def test_the_page_has_the_figures_that_the_runs_allow(published):
    html = published["html"].read_text()
    training, depth, response = svgs(html)
    assert "train/loss" in training
    assert "val/accuracy" not in training
    assert "effective rank" in depth
    assert "Transformer + GFSA" in response
    assert "No response of Transformer: spectral.json is missing." in html


def test_every_reference_inside_a_figure_is_met_and_every_colour_is_of_the_style(published):
    html = published["html"].read_text()
    style, body = html.split("</style>")
    for svg in svgs(body):
        wanted = {*re.findall(r'(?:href="#|url\(#)([\w-]+)', svg)}
        assert wanted <= {*re.findall(r' id="([^"]+)"', svg)}
    used = {*re.findall(r"var\((--[\w-]+)\)", body)}
    assert {"--ink", "--grid", "--series-0", "--series-3"} <= used
    for name in used:
        assert len(re.findall(rf"{name}:", style)) == 2, f"{name} needs a light and a dark value"
    assert not re.findall(r"#(?:0[123]0|000)[0-9a-f]{3}\b", body)


def test_runs_without_figures_leave_sentences(spec, tmp_path):
    run = curves.Run("agf", {"data": "heartbeat"}, {}, {})
    html = "".join(drawings.draw([run], {"agf": "AGF <1>"}, "HB"))
    assert svgs(html) == []
    assert html.count("of AGF &lt;1&gt;") == 3
    assert "tensorboard/ is missing" in html


def test_the_band_reaches_from_the_lowest_to_the_highest_seed():
    seeds = [pd.Series(np.array(values), index=[0, 5]) for values in ([1.0, 4.0], [3.0, 0.0])]
    frame = curves.over_seeds(seeds)
    assert frame.loc[5].to_dict() == {"mean": 2.0, "low": 0.0, "high": 4.0}


def test_shortening_the_figure_leaves_its_labels_alone():
    frame = curves.over_seeds([pd.Series([0.30, 0.34])])
    svg = figures.curves({"AGF": {"val/accuracy": frame}}, {"AGF": 0}, "HB")
    labels = re.findall(r"<text[^>]*>([\d.]+)</text>", svg)
    assert {"0.300", "0.305", "0.340"} <= {*labels}


def test_runs_of_other_backbones_have_figures_of_their_own(spec, paper, tmp_path):
    runs = {"transformer": []}
    (cell,) = spec.cells("small", "validation", [0], ["transformer"], ["heartbeat"])
    for place in ({"backbone": "deep"}, {"data": "digits"}, {"data": "digits", "seed": 1}):
        made = make_run(tmp_path / place.get("backbone", ""), replace(cell, **place), 0.5)
        runs["transformer"].append(made)
    found = page._by_setting(runs, paper)["small", "validation"]
    assert {place: len(runs) for place, runs in found.items()} == {"heartbeat": 1, "digits-uea": 2}


def test_publishing_again_changes_no_byte_and_loses_no_other_machines_cell(
    spec, paper, measurements, published
):
    before = {kind: path.read_bytes() for kind, path in published.items()}
    tables.publish(spec, paper, measurements, published["csv"].parent)
    assert {kind: path.read_bytes() for kind, path in published.items()} == before
    other = tables.Measurement("agf", "pems_sf", "paper", "test", 0, 91.3, "elsewhere/run")
    tables.publish(spec, paper, [other], published["csv"].parent)
    text = published["csv"].read_text()
    cell = "agf-table-1,transformer,heartbeat,small,validation,0 1"
    assert f"{cell},70.0000 72.0000,71.00,1.41,76.10," in text
    assert "agf-table-1,agf,pems_sf,paper,test,0,91.3000,91.30,,91.30,elsewhere/run" in text


def test_the_documentation_says_what_was_measured_and_how(spec, paper, measurements):
    text = tables.markdown(tables.aggregate(spec, paper, measurements), paper, spec)
    assert "`\nmake table TABLE=agf-table-1 PROFILE=small PROTOCOL=validation\n`" in text
    assert "| 71.00 ± 1.41 (2)<br>76.1 (−5.10) |" in text
    assert "| 76.00 ± 1.41 (2) |" in text
    assert "held out of the training set" in text
    assert all(note in text for note in paper.notes)
    (head,) = (line for line in text.splitlines() if line.startswith("| method | EC"))
    bars = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert bars == {head.count("|")}


def test_a_terminal_of_any_width_shows_every_number(spec, paper, measurements):
    frame = tables.aggregate(spec, paper, measurements)
    for width in (60, 100, 400):
        console = Console(file=StringIO(), width=width, highlight=False)
        columns = ["heartbeat", "average", "pems_sf"]
        tables.terminal(frame, paper, spec, "small", "validation", console, columns)
        text = console.file.getvalue()
        assert max(map(len, text.splitlines())) <= width
        assert re.search(r"│ Transformer +│ +71\.00 ± 1\.41 \(2\) +76\.1 +−5\.10", text)
        assert re.search(r"– +91\.3", text)
        assert "…" not in text
