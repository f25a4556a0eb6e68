"""From planned runs to jobs: train and measure what has no result yet."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape

from experiment_kit.launch import overlays
from experiment_kit.launch.estimate import estimate_needs
from experiment_kit.launch.jobs import (
    Job,
    default_workers,
    describe_failure,
    has_failed,
    read_last_line,
    run_jobs,
)
from experiment_kit.launch.launchers import LaunchJobs
from experiment_kit.launch.options import has_options
from experiment_kit.launch.plan import Experiment
from experiment_kit.launch.progress import JobProgress
from experiment_kit.run import Run
from experiment_kit.run_files import read_report, try_read


def print_plan(runs: Mapping[Experiment, Run], console: Console) -> None:
    """List the runs: what there is of each, and the one that it starts from."""
    for run, e in {run: e for e, run in runs.items()}.items():
        step = run.find_latest_step()
        state = "to train" if step is None else f"at step {step}"
        start = f", starts from {runs[e.start].folder}" if e.start else ""
        text = f"{'finished' if run.has_result else state}: {run.folder}{start}"
        console.print(escape(text), soft_wrap=True, highlight=False)


def run_missing(
    runs: Mapping[Experiment, Run],
    folder: str,
    workers: int,
    console: Console,
    launch: LaunchJobs | None = None,
) -> int:
    """Train and measure what has no result yet; return how many of them have none in the end.

    Experiments of one run share its process. A run begins once the one that it starts from has
    finished. Models are measured after all training and one at a time, since measurements would
    slow each other down. `launch` runs them on other machines.
    """
    trained = {run.folder: (e, run) for e, run in runs.items() if e.is_trained}
    missing = [(e, run) for e, run in trained.values() if not run.has_result]
    finished = len(trained) - len(missing)
    console.print(f"{finished} of {count_runs(len(trained))} finished")
    jobs = []
    needs = estimate_needs((e for e, _ in missing), folder)
    for e, run in missing:
        if (step := run.find_latest_step()) is not None:
            console.print(f"resuming {escape(str(run.folder))} from step {step}")
        arguments = [*e.arguments(folder, runs), "--trainer.enable_progress_bar=false"]
        command = overlays.command_line(e.app, "result", arguments)
        name, log = f"{e.data} {e.name} seed {e.seed}", run.folder / "log.txt"
        first = runs[e.start].folder / "result.json" if e.start else None
        output, server = run.folder / "result.json", f"attention_{e.app}"
        memory, devices = needs[e]
        jobs.append(Job(name, command, log, output, first, memory, server, devices))
    if launch is None:
        workers = workers or default_workers()
    failures = _run_with_progress(jobs, workers, console, launch)
    for source in ("efficiency", "eigenvalues"):
        measured = {run.folder: (e, run) for e, run in runs.items() if e.source == source}
        jobs = [
            Job(
                f"{source} of {e.backbone} {e.method}",
                overlays.command_line(
                    e.app, source, [*e.arguments(folder, runs), *_list_options(e)]
                ),
                run.folder / f"{source}.txt",
                run.folder / f"{source}.json",
            )
            for e, run in measured.values()
            if not _is_measured(e, run)
            if not e.is_trained or run.has_result  # its training failed
        ]
        failures += _run_with_progress(jobs, 1, console, launch)
    return failures


def count_runs(number: int) -> str:
    """Name a number of runs.

    >>> count_runs(1), count_runs(2)
    ('1 run', '2 runs')
    """
    return "1 run" if number == 1 else f"{number} runs"


def _list_options(experiment: Experiment) -> Sequence[str]:
    return experiment.eigenvalues.arguments if experiment.eigenvalues else ()


def _is_measured(experiment: Experiment, run: Run) -> bool:
    """Return True for a measurement with the options of the experiment, or a damaged one."""
    if not (run.folder / f"{experiment.source}.json").is_file():
        return False
    report = try_read(read_report, run.folder, experiment.source)
    return report is None or has_options(report, experiment.eigenvalues)


def _run_with_progress(
    jobs: Sequence[Job], workers: int, console: Console, launch: LaunchJobs | None = None
) -> int:
    if not jobs:
        return 0
    failures = 0
    with JobProgress(len(jobs), console) as progress:

        def show_end(job: Job, status: int) -> None:
            nonlocal failures
            failed = has_failed(job, status)
            failures += failed
            mark = f"[red]{describe_failure(job, status)}[/]" if failed else "[green]done[/]"
            line = escape(read_last_line(job.log))
            progress.console.print(f"{mark} {escape(job.name)}: {line}")
            progress.remove_job(job)

        def show_retry(job: Job, status: int) -> None:
            text = f"{job.name}: {describe_failure(job, status)}"
            progress.console.print(f"[yellow]trying again[/] {escape(text)}")
            progress.hide_job(job)

        (launch or run_jobs)(jobs, workers, show_end, progress.add_job, show_retry)
    waiting = [job for job in jobs if job.needs and not job.needs.is_file()]
    for needs in dict.fromkeys(job.needs for job in waiting):
        names = ", ".join(job.name for job in waiting if job.needs == needs)
        reason = f"they start from {needs and needs.parent}, which did not finish"
        console.print(f"[red]left out[/] {escape(names)}: {escape(reason)}")
    return failures + len(waiting)
