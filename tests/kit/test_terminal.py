"""What the terminal shows: tables and progress."""

import io

import pytest
from experiment_kit.launch.execute import JobProgress, read_progress
from experiment_kit.launch.jobs import Job
from experiment_kit.pages.tables import PageTable, print_page_table
from rich.console import Console


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_tables_fit_the_terminal_and_cut_nothing(width):
    head = ["method", "parameters", "loss", "accuracy", "val/score", "time/epoch", "token cosine"]
    rows = [["plain", "6,460,937", "0.7577", "0.9062", "0.9653", "0.8296", "0.594"]]
    rows += [["agf", "6,986,259", "0.9705", "0.875", "0.996", "0.9442", "0.5546"]]
    console = Console(width=width, record=True, file=io.StringIO())
    print_page_table(PageTable("title", head, rows), console)
    text = console.export_text()
    assert all(cell in text for row in [head, *rows] for cell in row)
    assert "…" not in text


def test_the_progress_of_jobs_is_what_they_write(tmp_path):
    jobs = [Job(f"job {i}", [], tmp_path / str(i) / "log", tmp_path / str(i)) for i in range(2)]
    for job in jobs:
        job.log.parent.mkdir()
    with JobProgress(2, Console(file=io.StringIO())) as progress:
        progress.add_job(jobs[0])
        list(progress.get_renderables())
        assert progress.tasks[0].completed == 0
        jobs[0].log.with_name("progress.txt").write_text("0.75 epoch 3/4")
        list(progress.get_renderables())
        assert progress.tasks[0].completed == progress.tasks[1].completed == 0.75
        assert progress.tasks[1].fields["at"] == "epoch 3/4"
        progress.remove_job(jobs[0])
        list(progress.get_renderables())
        assert (progress.tasks[0].completed, progress.tasks[0].fields["at"]) == (1, "1 of 2")
    assert read_progress(jobs[1].log.with_name("progress.txt")) == (0.0, "")
