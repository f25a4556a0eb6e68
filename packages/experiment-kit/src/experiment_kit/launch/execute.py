"""The processes that train and measure runs; none outlives the process that starts it."""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import psutil
import torch
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from experiment_kit.launch import overlays
from experiment_kit.launch.options import has_options
from experiment_kit.launch.plan import Experiment
from experiment_kit.run import Run
from experiment_kit.run_files import read_or_warn, read_report
from experiment_kit.training.checkpoints import EXIT_STATUS

MEMORY_PER_JOB_GIB = 2  # a small training process, with a margin
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Job:
    """A process: its name for the reader, its arguments after `python`, its log, what it makes.

    It begins once the file `needs` is there, which another job makes.
    """

    name: str
    arguments: Sequence[str]
    log: Path
    output: Path
    needs: Path | None = None


def print_plan(runs: Mapping[Experiment, Run], console: Console) -> None:
    """List the runs: what there is of each, and the one that it starts from."""
    for run, e in {run: e for e, run in runs.items()}.items():
        step = run.find_latest_step()
        state = "to train" if step is None else f"at step {step}"
        start = f", starts from {runs[e.start].folder}" if e.start else ""
        text = f"{'finished' if run.has_result else state}: {run.folder}{start}"
        console.print(escape(text), soft_wrap=True, highlight=False)


def run_missing(runs: Mapping[Experiment, Run], folder: str, workers: int, console: Console) -> int:
    """Train and measure what has no result yet; return how many of them have none in the end.

    Experiments of one run share its process. A run begins once the one that it starts from has
    finished. Models are measured after all training and one at a time, since measurements would
    slow each other down.
    """
    trained = {run.folder: (e, run) for e, run in runs.items() if e.is_trained}
    missing = [(e, run) for e, run in trained.values() if not run.has_result]
    finished = len(trained) - len(missing)
    console.print(f"{finished} of {count_runs(len(trained))} finished")
    jobs = []
    for e, run in missing:
        if (step := run.find_latest_step()) is not None:
            console.print(f"resuming {escape(str(run.folder))} from step {step}")
        arguments = [*e.arguments(folder, runs), "--trainer.enable_progress_bar=false"]
        command = overlays.command_line(e.app, "result", arguments)
        name, log = f"{e.data} {e.name} seed {e.seed}", run.folder / "log.txt"
        needs = runs[e.start].folder / "result.json" if e.start else None
        jobs.append(Job(name, command, log, run.folder / "result.json", needs))
    failures = _run_with_progress(jobs, workers or default_workers(), console)
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
        failures += _run_with_progress(jobs, 1, console)
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
    report = read_or_warn(read_report, run.folder, experiment.source)
    return report is None or has_options(report, experiment.eigenvalues)


def _run_with_progress(jobs: Sequence[Job], workers: int, console: Console) -> int:
    if not jobs:
        return 0
    failures = 0
    with JobProgress(len(jobs), console) as progress:

        def show_end(job: Job, status: int) -> None:
            nonlocal failures
            done = status == 0 and job.output.is_file()
            failures += not done
            last_line = job.log.read_text(errors="replace").strip().rpartition("\n")[2]
            mark = "[green]done[/]" if done else f"[red]{describe_failure(job, status)}[/]"
            progress.console.print(f"{mark} {escape(job.name)}: {escape(last_line)}")
            progress.remove_job(job)

        run_jobs(jobs, workers, show_end, progress.add_job)
    waiting = [job for job in jobs if job.needs and not job.needs.is_file()]
    for needs in dict.fromkeys(job.needs for job in waiting):
        names = ", ".join(job.name for job in waiting if job.needs == needs)
        reason = f"they start from {needs and needs.parent}, which did not finish"
        console.print(f"[red]left out[/] {escape(names)}: {escape(reason)}")
    return failures + len(waiting)


class JobProgress(Progress):
    """The progress of all jobs, and of each that runs: its epoch, and the time that is left."""

    def __init__(self, num_jobs: int, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(16), TextColumn("{task.fields[at]}"))
        self.num_jobs, self.num_ended, self.tasks_of = num_jobs, 0, dict[Path, TaskID]()
        super().__init__(*columns, TimeRemainingColumn(), console=console)
        self.total = self.add_task("all", total=num_jobs, at=f"0 of {num_jobs}")

    def add_job(self, job: Job) -> None:
        """Show a job that starts."""
        self.tasks_of[job.log] = self.add_task(escape(job.name), total=1.0, at="starting")

    def remove_job(self, job: Job) -> None:
        """Count a job that ended."""
        self.num_ended += 1
        if (task := self.tasks_of.pop(job.log, None)) is not None:
            self.remove_task(task)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Read the files that the jobs write, at each refresh."""
        completed = float(self.num_ended)
        for log, task in list(self.tasks_of.items()):
            done, at = read_progress(log.with_name("progress.json"))
            completed += done
            if at:
                self.update(task, completed=done, at=at)
        if self.task_ids:  # none while this object is made
            at = f"{self.num_ended} of {self.num_jobs}"
            self.update(self.total, completed=completed, at=at)
        yield from super().get_renderables()


def read_progress(path: Path) -> tuple[float, str]:
    """Return the share of a run that is done, and its epoch; no text before its first step."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0.0, ""
    share = state["step"] / state["steps"] if state.get("steps") else 0.0
    last = f"/{state['epochs']}" if "epochs" in state else ""
    return min(1.0, share), f"epoch {state['epoch']}{last}"


def default_workers() -> int:
    """Count the processes that fit here: one per GPU, else one per core that has memory."""
    if torch.cuda.is_available():
        return torch.cuda.device_count()
    memory = psutil.virtual_memory().available // (MEMORY_PER_JOB_GIB * 2**30)
    return max(1, min(count_cores(), memory))


def count_cores() -> int:
    """Count the cores that this process may use."""
    linux = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if linux else os.cpu_count() or 1


def describe_failure(job: Job, status: int) -> str:
    """Say why a process that ended made nothing."""
    if status == EXIT_STATUS:
        return "stopped, the same command resumes it"
    return (
        f"exit status {status}"
        if status
        else f"ended without {job.output.name}, see {job.log.name}"
    )


def run_jobs(
    jobs: Sequence[Job],
    workers: int,
    on_end: Callable[[Job, int], None],
    on_start: Callable[[Job], None] = lambda job: None,
) -> None:
    """Run every job, `workers` at a time; call `on_end` with each exit status.

    A job whose `needs` no other job makes is never run. An exception, as that of a signal, is
    passed on as SIGTERM, so that each job saves and leaves, and then raised.
    """
    waiting = list(jobs)
    running: dict[subprocess.Popen[bytes], tuple[Job, int]] = {}
    ended: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    # threads depend on the machine, not on the jobs left: a resumed job must add in the same order
    threads = max(1, count_cores() // workers)
    free = list(range(workers))
    with _terminate_with_launcher(running):
        while waiting or running:
            while free and (job := _find_ready(waiting)):
                waiting.remove(job)
                slot = free.pop(0)
                process = _start(job, slot, threads)
                running[process] = (job, slot)
                on_start(job)
                Thread(target=_report_end, args=(process, ended), daemon=True).start()
            if not running:
                return
            process = ended.get()
            job, slot = running.pop(process)
            free.append(slot)
            on_end(job, process.returncode)


def _find_ready(jobs: Iterable[Job]) -> Job | None:
    return next((job for job in jobs if not job.needs or job.needs.is_file()), None)


def _report_end(process: subprocess.Popen[bytes], ended: SimpleQueue[Any]) -> None:
    process.wait()
    ended.put(process)


def _start(job: Job, slot: int, threads: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    if torch.cuda.is_available():
        every = ",".join(map(str, range(torch.cuda.device_count())))
        gpus = (os.environ.get("CUDA_VISIBLE_DEVICES") or every).split(",")
        environment["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *job.arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )


def _die_with_parent() -> None:
    # kill -9 on the launcher must not leave training processes behind
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def _terminate_with_launcher(running: Iterable[subprocess.Popen[bytes]]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
        raise


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """End on a signal with one line, and with the exit status that a shell has for it."""

    def interrupt(number: int, _: Any) -> None:
        raise KeyboardInterrupt(number)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # nohup and the shell, for a command in the background, let signals be ignored
    defaults = (signal.SIG_DFL, signal.default_int_handler)
    heard = [number for number in signals if signal.getsignal(number) in defaults]
    previous = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    except KeyboardInterrupt as error:
        number = signal.Signals(error.args[0] if error.args else signal.SIGINT)
        print(f"stopped by {number.name}: the same command goes on from here", file=sys.stderr)
        raise SystemExit(128 + number) from error
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
