"""Campaigns against `python -m experiment_kit table`: real processes, and none that is left."""

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.robustness.campaigns import Outcome, Row, make_workspace, read_last_line
from tests.robustness.compare_runs import compare_runs
from tests.robustness.processes import HUNG, list_session, start_process, wait_for_end

APP, TABLE = "sequence", "agf-table-1"
COMMAND = (
    *("-m", "experiment_kit", "table", TABLE, "--profile=smoke", "--seeds=[0]"),
    *("--rows=[transformer,gfsa]", "--columns=[japanese_vowels]"),
    *("--folder=out", "--out=results"),
)
MOMENTS = {  # the moment has come when such a file is there
    "planning": "apps",
    "cells start": "out/**/log.txt",
    "cells train": "out/**/environment.yaml",
    "a checkpoint is there": "out/**/checkpoints/step=*.ckpt",
    "a cell ends": "out/**/result.json",
}
THREE = "cells train", "a checkpoint is there", "a cell ends"


@dataclass(frozen=True)
class LauncherCampaign:
    """Signals to the launcher, to a cell, or to the whole group, one a start of the launcher."""

    signal: str
    moments: tuple[str, ...]
    target: str = "launcher"
    jobs: int = 2

    @property
    def row(self) -> Row:
        target = f"{self.target}, --jobs={self.jobs}"
        return f"table {TABLE}, {target}", self.signal, ", ".join(self.moments)


def list_campaigns(quick: bool) -> list[LauncherCampaign]:
    if quick:
        return [LauncherCampaign("KILL", THREE)]
    train = ("cells train",)
    return [
        *(LauncherCampaign("KILL", (moment,)) for moment in MOMENTS),
        LauncherCampaign("KILL", THREE),
        *(LauncherCampaign(name, train) for name in ("TERM", "INT", "HUP")),
        *(LauncherCampaign("TERM", (moment,)) for moment in ("planning", "a cell ends")),
        LauncherCampaign("INT", train, "group"),
        *(LauncherCampaign(name, train, "cell") for name in ("KILL", "TERM")),
        LauncherCampaign("none", (), "two launchers"),
        *(LauncherCampaign("none", (), "whole", jobs) for jobs in (1, 2)),
    ]


def run_whole_table(scratch: Path) -> Path:
    """Make the table without an interruption; return the folder."""
    folder = make_workspace(scratch, "whole-table", APP)
    if status := wait_for_end(start_launcher(folder)):
        raise RuntimeError(f"{folder / 'log.txt'} ends with status {status}")
    return folder


def start_launcher(folder: Path, jobs: int = 2) -> subprocess.Popen[bytes]:
    chosen = {"OMP_NUM_THREADS": ""}  # the launcher chooses the threads, as for a user
    return start_process((*COMMAND, f"--jobs={jobs}"), folder, folder / "log.txt", chosen)


def run_launcher_campaign(
    scratch: Path, name: str, campaign: LauncherCampaign, whole: Path
) -> Outcome:
    """Interrupt, start again, and compare the cells and the csv with those of the whole table."""
    began, outcome = time.perf_counter(), Outcome()
    folder = make_workspace(scratch, name, APP)
    for moment in campaign.moments:
        outcome.interruptions += interrupt_launcher(folder, campaign, moment, outcome)
    starts = 2 if campaign.target == "two launchers" else 1
    for process in [start_launcher(folder, campaign.jobs) for _ in range(starts)]:
        if status := wait_for_end(process):
            outcome.lost = f"status {status}: {read_last_line(folder / 'log.txt')}"
    if not outcome.lost:
        outcome.differences += compare_tables(whole, folder)
    outcome.seconds = time.perf_counter() - began
    if not outcome.failed:
        shutil.rmtree(folder)
    return outcome


def interrupt_launcher(
    folder: Path, campaign: LauncherCampaign, moment: str, outcome: Outcome
) -> int:
    """Send the signal; return 1 if the launcher was there to receive it."""
    process = start_launcher(folder, campaign.jobs)
    time.sleep(1)
    while process.poll() is None and not any(folder.glob(MOMENTS[moment])):
        time.sleep(0.02)
    number = getattr(signal, f"SIG{campaign.signal}")
    if process.poll() is not None:
        outcome.lost = f"the launcher ended before the moment: {read_last_line(folder / 'log.txt')}"
        return 0
    if campaign.target == "group":
        os.killpg(process.pid, number)
    elif campaign.target == "cell":
        cells = [p for p in list_session(process.pid) if p.ppid() == process.pid]
        cells[0].send_signal(number)
    else:
        process.send_signal(number)
    if wait_for_end(process) == HUNG:
        outcome.lost = f"processes are left after {campaign.signal}"
    if "Traceback" in (folder / "log.txt").read_text():
        outcome.differences.append(f"the launcher prints a traceback after {campaign.signal}")
    return 1


def compare_tables(whole: Path, other: Path) -> list[str]:
    """Compare all cells, and the csv."""
    results = {path.relative_to(whole): path for path in whole.glob("out/**/result.json")}
    found = {path.relative_to(other) for path in other.glob("out/**/result.json")}
    differences = [f"cells: {sorted(map(str, found ^ results.keys()))}"] * (found != {*results})
    for path in found & results.keys():
        differences += compare_runs((whole / path).parent, (other / path).parent)
    one, two = (folder / f"results/{TABLE}.csv" for folder in (whole, other))
    return differences + ["the csv differs"] * (one.read_text() != two.read_text())
