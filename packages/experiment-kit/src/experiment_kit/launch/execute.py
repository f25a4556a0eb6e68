"""From planned runs to jobs: train and measure what has no result yet."""

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from experiment_kit.app_files import PREFIX
from experiment_kit.errors import UserError
from experiment_kit.launch.jobs import Job, describe_failure, has_failed, read_last_line, run_jobs
from experiment_kit.launch.options import LaunchOptions
from experiment_kit.launch.plan import Experiment, load_planner
from experiment_kit.run import Run
from experiment_kit.run_files import read_report, try_read

Runs = Mapping[Experiment, Run]


def print_plan(runs: Runs, options: LaunchOptions) -> None:
    """Print the state of each run, or the shell command of each that is to train."""
    if options.dry_run == "commands":
        root = os.environ.get("DATA_DIR")
        command = ["env", f"DATA_DIR={os.path.abspath(root)}"] if root else []
        for job in list_training_jobs(runs, options.folder):
            print(shlex.join([*command, sys.executable, *job.arguments]))
        if costs := {run for e, run in runs.items() if not e.is_trained}:
            sentence = "have no command: this machine measures them without --dry_run"
            options.console.print(f"{len(costs)} costs of models {sentence}")
        return
    for (run, trains), e in {(run, e.is_trained): e for e, run in runs.items()}.items():
        step = run.find_latest_step()
        state = ("to train" if step is None else f"at step {step}") if trains else "to measure"
        is_done = run.has_result if trains else (run.folder / f"{e.source}.json").is_file()
        start = f", starts from {runs[e.start].folder}" if e.start else ""
        label = f" ({e.label})" if e.label else ""  # a point of a grid
        text = f"{'finished' if is_done else state}: {run.folder}{label}{start}"
        options.console.print(escape(text), highlight=False)


def run_missing(runs: Runs, options: LaunchOptions) -> int:
    """Train and measure what has no result yet; return how many of them have none in the end.

    Models are measured after all training and one at a time: they would slow each other down.
    """
    jobs = list_training_jobs(runs, options.folder)
    total = len({run for e, run in runs.items() if e.is_trained})
    options.console.print(f"{total - len(jobs)} of {total} run{'s' * (total != 1)} finished")
    for job in jobs:
        if (step := Run(job.output.parent).find_latest_step()) is not None:
            options.console.print(f"resuming {escape(str(job.output.parent))} from step {step}")
    failures = run_with_progress(jobs, options, options.jobs)
    for source in ("efficiency", "eigenvalues"):
        jobs = [*_list_measurements(runs, options.folder, source)]
        failures += run_with_progress(jobs, options, 1)
    return failures


def refuse_failures(count: int, place: str) -> None:
    """Raise UserError for runs that did not finish; `place` has the others."""
    if count:
        runs = f"{count} run{'s' * (count != 1)}"
        raise UserError(f"{runs} did not finish; the others are in the {place}")


def list_training_jobs(runs: Runs, folder: str) -> list[Job]:
    """Return a job for each run without a result, and for what it starts from before it."""
    jobs: dict[Run, Job] = {}
    for e, run in runs.items():
        if not e.is_trained or run.has_result or run in jobs:
            continue
        arguments = e.arguments(folder, runs)
        shown = [*arguments, "--trainer.enable_progress_bar=false"]
        jobs[run] = Job(
            f"{e.data} {e.name} seed {e.seed}",
            ["-m", f"{PREFIX}{e.app}", "fit", *shown],
            log=run.folder / "log.txt",
            output=run.folder / "result.json",
            needs=runs[e.start].folder / "result.json" if e.start else None,
            devices=count_devices(load_planner(e.app).merge_config(arguments)),
        )
    return [*jobs.values()]


def count_devices(config: Mapping[str, Any]) -> int:
    """Count the devices that a config names; 1 where it names no number."""
    given = config["trainer"]["devices"]
    if isinstance(given, list) or "," in str(given):
        return len(str(given).strip(",").split(","))
    return int(given) if str(given).isdecimal() else 1


def _list_measurements(runs: Runs, folder: str, source: str) -> Iterator[Job]:
    for run, e in {run: e for e, run in runs.items() if e.source == source}.items():
        path = run.folder / f"{source}.json"
        report = try_read(read_report, run.folder, source)
        is_measured = path.is_file() and (report is None or e.is_measured_by(report))
        if is_measured or (e.is_trained and not run.has_result):  # its training failed
            continue
        chosen = asdict(e.eigenvalues) if e.eigenvalues else {}
        options = (f"--{name}={value}" for name, value in chosen.items())
        command = ["-m", "experiment_kit", source, e.app, *e.arguments(folder, runs), *options]
        log = path.with_suffix(".txt")
        yield Job(f"{source} of {e.backbone} {e.method}", command, log, path)


def run_with_progress(jobs: Sequence[Job], options: LaunchOptions, workers: int) -> int:
    """Run jobs, and show how far they are; return how many of them made nothing."""
    if not jobs:
        return 0
    failed, console = list[Job](), options.console
    with JobProgress(len(jobs), console) as progress:

        def show_end(job: Job, status: int) -> None:
            mark, place = "[green]done[/]", ""
            if has_failed(job, status):
                failed.append(job)
                mark, place = f"[red]{describe_failure(job, status)}[/]", f", see {job.log}"
            last = f": {read_last_line(job.log)}" * (status >= 0)  # a signal leaves no reason there
            console.print(f"{mark} {escape(f'{job.name}{last}{place}')}")
            progress.remove_job(job)

        def show_retry(job: Job, status: int) -> None:
            text = f"{job.name}: {describe_failure(job, status)}"
            console.print(f"[yellow]trying again[/] {escape(text)}")
            progress.remove_job(job, has_ended=False)

        run_jobs(jobs, options.make_places(workers), show_end, progress.add_job, show_retry)
    waiting = [job for job in jobs if job.needs and not job.needs.is_file()]
    for needs in dict.fromkeys(job.needs for job in waiting):
        names = ", ".join(job.name for job in waiting if job.needs == needs)
        reason = f"they start from {needs and needs.parent}, which did not finish"
        console.print(f"[red]left out[/] {escape(names)}: {escape(reason)}")
    return len(failed) + len(waiting)


class JobProgress(Progress):
    """The progress of all jobs, and of each that runs: its epoch, and the time that is left."""

    def __init__(self, num_jobs: int, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(16), TextColumn("{task.fields[at]}"))
        self.num_jobs, self.num_ended, self.tasks_of = num_jobs, 0, dict[Path, TaskID]()
        super().__init__(*columns, TimeRemainingColumn(), console=console, refresh_per_second=2)
        self.total = self.add_task("all", total=num_jobs, at=f"0 of {num_jobs}")

    def add_job(self, job: Job) -> None:
        """Show a job that starts."""
        self.tasks_of[job.log] = self.add_task(escape(job.name), total=1.0, at="starting")

    def remove_job(self, job: Job, has_ended: bool = True) -> None:
        """Hide a job that has ended, or that starts again."""
        self.num_ended += has_ended
        self.remove_task(self.tasks_of.pop(job.log))

    def get_renderables(self) -> Iterable[RenderableType]:
        """Read the files that the jobs write."""
        completed = float(self.num_ended)
        for log, task in list(self.tasks_of.items()):
            done, at = read_progress(log.with_name("progress.txt"))
            completed += done
            if at:
                self.update(task, completed=done, at=at)
        if self.task_ids:  # none while this object is made
            at = f"{self.num_ended} of {self.num_jobs}"
            self.update(self.total, completed=completed, at=at)
        yield from super().get_renderables()


def read_progress(path: Path) -> tuple[float, str]:
    """Return the share of a run that is done, and its epoch; no text before its first step."""
    text = ""
    with suppress(OSError):  # the run has not begun, or has just ended
        text = path.read_text()
    share, _, epoch = text.partition(" ")
    return float(share or 0), epoch
