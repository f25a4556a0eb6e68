"""The progress of jobs on a terminal: how many have ended, and how far each is."""

import json
import time
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from experiment_kit.launch.jobs import Job


class JobProgress(Progress):
    """The progress of all jobs, and of each that runs: its epoch, and the time that is left."""

    def __init__(self, num_jobs: int, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(16), TextColumn("{task.fields[at]}"))
        self.num_jobs, self.num_ended, self.tasks_of = num_jobs, 0, dict[Path, TaskID]()
        self.next_look = 0.0
        super().__init__(*columns, TimeRemainingColumn(), console=console)
        self.total = self.add_task("all", total=num_jobs, at=f"0 of {num_jobs}")

    def add_job(self, job: Job) -> None:
        """Show a job that starts."""
        self.tasks_of[job.log] = self.add_task(escape(job.name), total=1.0, at="starting")

    def remove_job(self, job: Job) -> None:
        """Count a job that ended."""
        self.num_ended += 1
        self.hide_job(job)

    def hide_job(self, job: Job) -> None:
        """Hide a job that has ended, or that starts again."""
        self.next_look = 0.0
        if (task := self.tasks_of.pop(job.log, None)) is not None:
            self.remove_task(task)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Read the files that the jobs write, at most twenty a second."""
        if time.monotonic() >= self.next_look:
            self.next_look = time.monotonic() + len(self.tasks_of) / 20
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
