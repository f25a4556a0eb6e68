"""Searches whose trials are trained by a launcher, of which one is killed while another waits."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from experiment_kit.run_files import read_starts

from tests.apps.tiny import NARROW

pytest.importorskip("optuna", reason="optuna, of allpass-kit[search], is not installed")


@contextmanager
def start_search(folder: Path, log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command as a process, and kill at the end what it has left."""
    command = ["search", "sequence", "--data=japanese_vowels", "--methods=[gfsa]", "--jobs=1"]
    command += ["--profile=smoke", "--seeds=[0]", "--trials=3", f"--folder={folder}"]
    command += ["--grid=model.filter.K=2,3,4", f"--args={' '.join(NARROW)}", *options]
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "experiment_kit", *command],
            stdout=file,
            stderr=file,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        yield process
    finally:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.wait()


def wait_for(log: Path, pattern: str, folder: Path) -> None:
    deadline = time.monotonic() + 120
    while not any(folder.rglob(pattern)):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("launcher", ["local", "ray"])
def test_a_search_goes_on_in_a_second_launcher_as_the_first_is_killed(
    launcher, request, tmp_path
) -> None:
    if launcher == "ray":
        request.getfixturevalue("nodes")
    folder, logs = tmp_path / "runs", [tmp_path / name for name in ("first", "second")]
    place = f"--launcher={launcher}"
    with start_search(folder, logs[0], place) as first:
        wait_for(logs[0], "*.journal", folder)
        with start_search(folder, logs[1], place) as second:
            deadline = time.monotonic() + 120
            while b"waiting for" not in logs[1].read_bytes():
                assert time.monotonic() < deadline, logs[1].read_text()
                time.sleep(0.05)
            wait_for(logs[0], "result.json", folder)
            first.kill()
            first.wait()
            finished = {path: path.stat().st_mtime_ns for path in folder.rglob("result.json")}
            assert second.wait(timeout=200) == 0, logs[1].read_text()
    results = [*folder.glob("sequence/japanese_vowels-uea/gfsa/seed-*/result.json")]
    assert len(results) == 3
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    starts = sum(len(read_starts(path.parent)) for path in results)
    assert 3 <= starts <= 4  # of the run that the first launcher left, once more
    (overlay,) = folder.rglob("chosen.yaml")
    assert "the highest of 3 trials" in overlay.read_text()
    assert "3 of 3 points" in logs[1].read_text()
