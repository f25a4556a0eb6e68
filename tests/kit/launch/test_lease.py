"""Leases: one holder, whatever dies, sleeps or has its clock set."""

import errno
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from experiment_kit.launch import lease as leases
from experiment_kit.launch.lease import Lease, find_lease, is_held, take_lease

from tests.processes import CONTEXT

PERIOD = 0.2
LIMIT = leases.NUM_PERIODS * PERIOD


def take(folder: Path) -> Lease | None:
    return take_lease(folder, PERIOD)


def disguise_holder(folder: Path, held: Lease | None = None) -> None:
    """Let the lease be that of another machine, of which nobody here knows whether it lives."""
    path = find_lease(folder)
    if held:  # its renewals too
        write = held._format_holder
        name = leases._name_machine().encode()
        held._format_holder = lambda released: write(released).replace(name, b"another")
    holder = json.loads(path.read_bytes()) | {"machine": "another"}
    path.write_bytes(json.dumps(holder).encode())


def compete(folder: Path, rounds: int) -> None:
    """Count up in a file as often as the lease is ours; another writer would lose counts."""
    count = folder / "count"
    for _ in range(rounds):
        while (held := take_lease(folder)) is None:  # no process may stall for a minute
            time.sleep(0.001)
        with held:
            number = int(count.read_text())
            time.sleep(0.002)
            count.write_text(str(number + 1))


def hold(folder: Path) -> None:
    with take(folder):
        (folder / "held").touch()
        time.sleep(60)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_of_processes_that_compete_one_at_a_time_holds_the_lease(tmp_path) -> None:
    (tmp_path / "count").write_text("0")
    processes = [CONTEXT.Process(target=compete, args=(tmp_path, 10)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert (tmp_path / "count").read_text() == "30"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["count", "lease.30"]  # nothing else is left


@pytest.mark.skipif(sys.platform != "linux", reason="other systems wait for the end of the lease")
def test_the_lease_of_a_process_that_was_killed_here_is_free_at_once(tmp_path) -> None:
    process = CONTEXT.Process(target=hold, args=(tmp_path,))
    process.start()
    wait_for(tmp_path / "held")
    assert is_held(tmp_path, 1000)
    assert take_lease(tmp_path, period=1000) is None
    process.kill()
    process.join()
    assert not is_held(tmp_path, 1000)
    assert take_lease(tmp_path, period=1000)


def test_the_lease_of_a_machine_that_fell_silent_is_taken_after_its_periods(tmp_path) -> None:
    process = CONTEXT.Process(target=hold, args=(tmp_path,))
    process.start()
    try:
        wait_for(tmp_path / "held")
        os.kill(process.pid, signal.SIGSTOP)
        began = time.monotonic()
        while (held := take(tmp_path)) is None:
            assert time.monotonic() - began < 60
            time.sleep(0.05)
        assert time.monotonic() - began > LIMIT - PERIOD
        with held:
            os.kill(process.pid, signal.SIGCONT)  # it renews, and learns that it has none
            time.sleep(2 * PERIOD)
        assert not held.was_taken
        assert [path.name for path in tmp_path.glob("lease.*")] == ["lease.2"]
    finally:
        process.kill()
        process.join()


def test_a_holder_learns_that_its_lease_was_taken(tmp_path) -> None:
    first = take(tmp_path)
    disguise_holder(tmp_path)
    os.utime(find_lease(tmp_path), (1, 1))
    second = take(tmp_path)
    first.renew()
    second.renew()
    assert (first.was_taken, first.is_lost, second.was_taken) == (True, True, False)


def test_a_holder_that_cannot_renew_stops_before_its_lease_ends(tmp_path, monkeypatch) -> None:
    held = take(tmp_path)
    monkeypatch.setattr(leases.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "full")))
    while not held.is_lost:
        held.renew()
        time.sleep(0.01)
    assert not held.was_taken
    assert time.monotonic() - held.renewed < LIMIT


@pytest.mark.parametrize("seconds", [-1e6, 1e6], ids=["backwards", "forwards"])
def test_a_clock_that_is_set_ends_no_lease_that_is_renewed(seconds, tmp_path) -> None:
    with take_lease(tmp_path, period=0.5):
        disguise_holder(tmp_path)
        path, now = find_lease(tmp_path), time.time()
        # of a lease written before the file system's clock was set by so many seconds
        os.utime(path, (now - seconds, now - seconds))
        assert take_lease(tmp_path, period=1) is None
        assert is_held(tmp_path, period=1)


@pytest.mark.parametrize("seconds", [-1e6, 1e6], ids=["backwards", "forwards"])
def test_the_clock_of_a_machine_does_not_matter(seconds, tmp_path, monkeypatch) -> None:
    wrong = time.time() + seconds
    monkeypatch.setattr(leases.time, "time", lambda: wrong)
    held = take(tmp_path)
    disguise_holder(tmp_path)
    monkeypatch.undo()
    assert is_held(tmp_path)
    assert take_lease(tmp_path) is None
    assert held


def test_a_dead_lease_from_the_future_ends_too(tmp_path) -> None:
    take(tmp_path)
    disguise_holder(tmp_path)
    later = time.time() + 1e6
    os.utime(find_lease(tmp_path), (later, later))
    began = time.monotonic()
    assert take(tmp_path)
    assert time.monotonic() - began >= LIMIT


@pytest.mark.parametrize("content", [b"", b"{", b"[1]"])
def test_a_damaged_lease_ends_by_its_age(content, tmp_path) -> None:
    take(tmp_path)
    path = find_lease(tmp_path)
    path.write_bytes(content)
    assert take_lease(tmp_path) is None
    os.utime(path, (1, 1))
    assert take(tmp_path)


def test_an_old_number_is_no_lease(tmp_path) -> None:
    for _ in range(3):
        with take(tmp_path):
            pass
    newest = take(tmp_path)
    slow = Lease(tmp_path / "lease.2", PERIOD)  # of a process that read the folder long ago
    assert not slow.create_file()
    newest.renew()
    assert not newest.was_taken
    assert find_lease(tmp_path).name == "lease.4"


@pytest.mark.parametrize("seconds", [-1e6, 1e6], ids=["backwards", "forwards"])
def test_a_clock_that_jumps_while_a_lease_is_held(seconds, tmp_path, monkeypatch) -> None:
    """Every clock that can be set jumps: that of the machine, and that of the file system."""
    offset, now, sync = 0.0, time.time, os.fsync

    def write_with_clock(number: int) -> None:
        sync(number)
        os.utime(number, (now() + offset, now() + offset))

    monkeypatch.setattr(leases.os, "fsync", write_with_clock)
    monkeypatch.setattr(leases.time, "time", lambda: now() + offset)
    with take(tmp_path) as held:
        disguise_holder(tmp_path, held)
        offset = seconds
        assert find_lease(tmp_path).stat().st_mtime < now() + 1  # written before the jump
        assert take(tmp_path) is None
        time.sleep(2 * PERIOD)
        assert abs(find_lease(tmp_path).stat().st_mtime - now() - seconds) < LIMIT
        assert take(tmp_path) is None
        assert not held.is_lost
        held.stopped.set()  # it falls silent without a release, and its clock jumps back
        held.thread.join()
        offset = 0.0
        began = time.monotonic()
        while (other := take(tmp_path)) is None:
            assert time.monotonic() - began < 60
        assert time.monotonic() - began > PERIOD
        held.renew()
        assert held.was_taken
    assert find_lease(tmp_path) == other.path


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_folder_that_cannot_be_written_gives_no_lease(
    call, number, tmp_path, monkeypatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(leases.os, call, refuse)
    with pytest.raises(OSError, match=os.strerror(number)):
        take(tmp_path)
    assert not [*tmp_path.iterdir()]  # neither a lease nor a part of one
    monkeypatch.undo()
    assert take(tmp_path)
