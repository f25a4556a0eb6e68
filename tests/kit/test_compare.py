"""Methods side by side, from the files that their runs leave."""

import json
import re

import pandas
import pytest
from experiment_kit.errors import UserError
from experiment_kit.launch import compare as launch
from experiment_kit.report.comparison import facts
from experiment_kit.report.curves import Run
from torch.utils.tensorboard import SummaryWriter


def finish(run, seed):
    """Leave what a finished run of 8 samples a batch and 10 batches a second leaves."""
    layer = {"hfc_lfc": 0.5 + seed, "token_cosine": 0.25, "effective_rank": 3.0}
    depth = {"depth": [{**layer, "hfc_lfc": 9.0}, layer], "response": [[[1.0, 0.5]]]}
    run.folder.mkdir(parents=True)
    (run.folder / "spectral.json").write_text(json.dumps(depth))
    (run.folder / "config.yaml").write_text("data: {init_args: {batch_size: 8}}")
    with SummaryWriter(run.folder / "tensorboard") as writer:
        for step, rate in enumerate((1.0, 10.0, 10.0)):  # the first epoch warms up
            writer.add_scalar("speed/steps_per_second", rate, step)
            writer.add_scalar("train/loss", 1.0 / (step + 1), step)
    metrics = {"test/loss": 2.0, "test/accuracy": 0.5 + 0.25 * seed}
    run.finish({"parameters": 22050736, "metrics": metrics})


@pytest.fixture
def make(monkeypatch):
    """Stand in for the processes: all but featscale finish."""

    def finished(runs, folder, jobs, console):
        for cell, run in runs.items():
            if cell.method != "featscale":
                finish(run, cell.seed)
        return sum(cell.method == "featscale" for cell in runs)

    monkeypatch.setattr(launch, "make", finished)
    monkeypatch.setenv("COLUMNS", "200")


def run(tmp_path, *methods):
    launch.compare("sequence", "japanese_vowels", "uea", methods, seeds=[0, 1], folder=tmp_path)


def test_a_method_is_a_row_of_means_over_seeds(make, tmp_path, capsys):
    run(tmp_path, "plain", "gfsa")
    head, *rows = (
        line.split()
        for line in capsys.readouterr().out.splitlines()
        if "±" in line or "HFC" in line
    )
    assert " ".join(head) == "method parameters loss accuracy samples/s HFC/LFC token cosine"
    assert [row[0] for row in rows] == ["plain", "gfsa"]
    numbers = "22,050,736 2 ± 0 0.625 ± 0.18 80 ± 0 1 ± 0.71 0.25 ± 0"
    assert all(" ".join(row[1:]) == numbers for row in rows)


def test_the_page_has_the_numbers_and_the_figures_and_stands_alone(make, tmp_path):
    run(tmp_path, "plain", "gfsa")
    html = (tmp_path / "sequence/japanese_vowels-uea/compare.html").read_text()
    assert "<td>0.625 ± 0.18</td>" in html
    assert html.count("<svg") == 3
    assert "japanese_vowels, uea" in html
    assert not re.search(r"<(script|link|img|iframe)\b|@import|url\((?!#)|https?://", html)


def test_a_method_that_failed_is_a_row_without_numbers_and_is_told(make, tmp_path, capsys):
    with pytest.raises(UserError, match="2 runs failed"):
        run(tmp_path, "plain", "featscale")
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "featscale" in line)
    assert row.split() == ["featscale", *["–"] * 6]


@pytest.mark.parametrize("nothing", [{"methods": []}, {"seeds": []}])
def test_nothing_to_compare_is_told(nothing):
    with pytest.raises(UserError, match="at least one method and one seed"):
        launch.compare("sequence", "basic_motions", "uea", **nothing)


def test_many_measures_are_read_downwards():
    head = ["method", *(f"m{i}" for i in range(launch.WIDE))]
    table = launch._table("", head, [["plain", *map(str, range(launch.WIDE))]])
    assert [column.header for column in table.columns] == ["method", "plain"]
    assert list(table.columns[0].cells)[-1] == f"m{launch.WIDE - 1}"
    assert table.row_count == launch.WIDE


def test_batches_of_so_many_seconds_are_counted_in_steps():
    config = {"data": {"init_args": {"batch_seconds": 60}}}
    scalars = {"speed/steps_per_second": pandas.Series([1.0, 2.0, 4.0])}
    run = Run("gfsa", {"parameters": 72, "metrics": {}}, scalars, {}, config)
    assert facts(run) == {"parameters": 72, "steps/s": 2.0}
