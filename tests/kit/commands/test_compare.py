"""Methods side by side, from the files that their runs leave."""

import json
import math
import re
from dataclasses import replace

import pytest
from experiment_kit.commands import compare as launch
from experiment_kit.errors import UserError
from experiment_kit.launch.plan import Experiment
from experiment_kit.pages.records import RunRecord, average_curves, draw_figures, read_scalars

from tests.kit.run_results import make_result, write_scalars


def finish_run(run, experiment):
    seed = experiment.seed
    layer = {"hfc_lfc": 0.5 + seed, "token_cosine": 0.25, "effective_rank": 3.0}
    depth = {"depth": [{**layer, "hfc_lfc": 9.0}, layer], "response": [[1.0, 0.5, 0.2][: 2 + seed]]}
    run.folder.mkdir(parents=True)
    (run.folder / "spectral.json").write_text(json.dumps(depth))
    data = {"content": {}, "names": experiment.method}
    (run.folder / "data.json").write_text(json.dumps(data))
    (run.folder / "config.yaml").write_text("data: {init_args: {batch_size: 8}}")
    write_scalars(run.folder, {"train/loss": {0: 1.0, 1: 0.5}})
    metrics = {"test/loss": 2.0, "test/accuracy": 0.5 + 0.25 * seed}
    run.write_result(make_result(run, experiment, parameters=22050736, metrics=metrics))


@pytest.fixture
def compare(monkeypatch, tmp_path):
    """Compare methods; all but featscale finish."""

    def run_missing(runs, options):
        missing = {e: run for e, run in runs.items() if not run.has_result}
        lost = [e for e in missing if e.method == "featscale"]
        for experiment in missing.keys() - {*lost}:
            finish_run(missing[experiment], experiment)
        return len(lost)

    monkeypatch.setattr(launch, "run_missing", run_missing)
    monkeypatch.setenv("COLUMNS", "200")
    names = {"data": "japanese_vowels", "backbone": "uea", "seeds": [0, 1], "folder": str(tmp_path)}
    return lambda *methods, app="sequence", **options: launch.compare_methods(
        app, methods=methods, **names | options
    )


def test_table_and_page_have_means_over_seeds_and_the_page_stands_alone(compare, tmp_path, capsys):
    compare("plain", "gfsa")
    text, errors = capsys.readouterr()
    warned = re.findall(r"^warning: .*/(\w+)/seed-.* was trained on other data", errors, re.M)
    assert warned == ["gfsa", "gfsa"]
    head, *rows = (line.split() for line in text.splitlines() if "±" in line or "HFC" in line)
    assert " ".join(head) == "method parameters loss accuracy HFC/LFC token cosine"
    assert launch.is_higher_better("test/answer_accuracy")  # which contains wer
    assert not launch.is_higher_better("test/brier_score")
    numbers = "22,050,736 2 ± 0 0.625 ± 0.18 1 ± 0.71 0.25 ± 0"
    assert [" ".join(row) for row in rows] == [f"plain {numbers}", f"gfsa {numbers}"]
    page = tmp_path / "sequence/japanese_vowels-uea/compare.html"
    html = page.read_text()
    assert "<td>0.625 ± 0.18</td>" in html
    assert html.count("<picture>") == 3  # curves, depth, responses
    assert "<h1>japanese_vowels, uea</h1>" in html
    assert not re.search(r"<(link|iframe|script )\b|@import|url\(|https?://", html)
    links = re.findall(r'href="([^"#]+)"', html)
    assert len(links) == 8  # config and result of each run
    assert all((page.parent / link).is_file() for link in links)
    assert "<code>allpass" in html


def test_a_mean_that_lacks_a_seed_says_so_and_no_method_is_the_best() -> None:
    losses = {"plain": (0.2, 0.2, 0.2), "gfsa": (math.nan, 0.1, 0.1)}
    runs = [RunRecord(m, {"seed": s, "parameters": s, "metrics": {"test/loss": x, "wer": len(m)}})
            for m, values in losses.items() for s, x in enumerate(values)]  # fmt: skip
    table = launch.tabulate_methods([*losses], runs, 3)
    assert table.rows[1] == ["gfsa", "1 ± 1", "0.1 ± 0 (2 of 3)", "4"]
    assert table.best == [(1, 3)]
    layer = {"response": [[1.0, 0.5]]}
    *_, figure = draw_figures(["gfsa"], [replace(runs[-1], spectral=layer), runs[-2]], "")
    assert figure.caption.endswith("No response of gfsa seed 1: spectral.json is missing.")


@pytest.mark.usefixtures("unsaved")
def test_a_method_that_failed_is_a_row_without_numbers_and_an_error(compare, capsys, tmp_path):
    with pytest.raises(UserError, match="no run finished: see ") as error:
        compare("featscale")
    assert error.value.code == 1
    assert not [*tmp_path.rglob("*.html")]
    with pytest.raises(UserError, match="2 runs did not finish"):
        compare("plain", "featscale")
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "featscale" in line)
    assert row.split() == ["featscale", *["–"] * 5]


@pytest.mark.usefixtures("unsaved")
def test_a_finished_comparison_shows_where_nothing_can_be_written(compare, capsys, monkeypatch):
    compare("plain")

    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(launch.tables, "write_page", refuse)
    monkeypatch.setattr(launch, "run_missing", refuse)
    monkeypatch.setattr(launch, "make_folders", refuse)
    capsys.readouterr()
    compare("plain")
    shown = capsys.readouterr().out
    assert "0.625 ± 0.18" in shown
    assert "compare.html is not written: Read-only file system" in shown


def test_settings_of_an_own_recipe_are_printed_before_training(compare, capsys, tmp_path) -> None:
    names = {"data": "imagenet_1k", "backbone": "deit_small_24", "seeds": [0]}
    compare("plain", "gfsa", app="vision", dry_run=True, protocol="published", **names)
    text = capsys.readouterr().out
    assert text.startswith("One recipe, deit_24_gfsa, trains all; alone, a method would have")
    assert re.search(r"plain +model.dropout +0.0 +0.2\nplain +model.global_batch +1024 +512", text)
    with pytest.raises(UserError, match="imagenet_1k is not here: "):
        compare("plain", app="vision", **names)
    own = {"app": "nlp", "data": "csv_text", "backbone": "minilm", "method": "plain"}
    (tmp_path / "own.yaml").write_text("data: {init_args: {file: mine.csv}}")
    for args in (["--data.init_args.file=a"], ["--data=a.B"], ["-c", f"{tmp_path}/own.yaml"]):
        launch.refuse_absent_data([Experiment(args=tuple(args), **own)])  # the run itself looks
    compare("plain", "gfsa", dry_run=True, args="--model.filter=attention_core.AttnScale")
    assert "plain and gfsa are one run, " in capsys.readouterr().err
    with pytest.raises(UserError, match="--recipe=a,b: one recipe trains all methods: name one"):
        compare("plain", recipe="a,b")


def test_the_last_value_that_a_resumed_run_wrote_counts(tmp_path):
    write_scalars(tmp_path, {"val/loss": {10: 1.0, 20: 2.0, 30: 3.0}})
    write_scalars(tmp_path, {"val/loss": {20: 20.0, 40: 4.0}})
    assert read_scalars(tmp_path)["val/loss"].to_dict() == {10: 1.0, 20: 20.0, 30: 3.0, 40: 4.0}


def test_the_curves_are_losses_and_what_is_tested_and_a_long_training_loss_is_smooth(tmp_path):
    noisy = {step: float(step % 2) for step in range(100)}
    others = {key: {0: 1.0, 1: 0.5} for key in ("val/loss", "val/matthews", "val/score")}
    write_scalars(tmp_path, {"train/loss": noisy, **others})
    result = {"metrics": {"test/matthews": 0.5, "test/loss": 1.0, "val/score": 1.0}}
    curves = average_curves([RunRecord("agf", result, read_scalars(tmp_path))])
    assert [*curves] == ["train/loss", "val/loss", "val/matthews"]
    assert curves["train/loss"]["mean"].iloc[10:-10].between(0.3, 0.7).all()
    assert curves["val/loss"]["mean"].to_list() == [1.0, 0.5]
