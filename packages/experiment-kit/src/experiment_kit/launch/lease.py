"""Leases: one machine at a time writes the folder of a run, on a shared file system too.

A lease is the file `lease.<n>` with the highest n of a folder. Its holder renews it every period.
Whoever finds that it was released, or not renewed for `NUM_PERIODS`, makes `lease.<n + 1>` by a
hard link, which exactly one can do, on NFS too. A rename over the old file would let a slow process
replace the lease of a quicker one. The numbers never start again: the last file stays.

The age of a lease is the time of the file system, never that of a machine: that of a file written
now, less that of the lease. An old one is then watched by a clock that nobody can set.
"""

import errno
import json
import os
import platform
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

PERIOD = 10.0  # seconds between two renewals
NUM_PERIODS = 6  # without a renewal end a lease
_SPARE_PERIODS = 2  # before its end, in which a holder that cannot renew it kills its process
_SIZE = 512  # bytes: a renewal replaces all of the file in one write


class Lease:
    """The right to write a folder, renewed by a thread within the `with` block."""

    def __init__(self, path: Path, period: float) -> None:
        self.path, self.period, self.token = path, period, uuid.uuid4().hex
        self.count, self.renewed = 0, time.monotonic()
        self.was_taken, self.stopped = False, Event()
        self.thread = Thread(target=self._keep_renewing, daemon=True)

    def __enter__(self) -> "Lease":
        self.thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stopped.set()
        self.thread.join(self.period)  # a file system that hangs must not keep the process
        if not self.is_lost:
            self.renew(released=True)

    @property
    def is_lost(self) -> bool:
        """True once another process has taken the lease, or soon may: write no more."""
        limit = (NUM_PERIODS - _SPARE_PERIODS) * self.period
        return self.was_taken or time.monotonic() - self.renewed > limit

    def renew(self, released: bool = False) -> None:
        """Write the lease again, or its end, unless another process has taken it."""
        began = time.monotonic()
        try:
            # a file that was replaced since is written under no name: it harms nobody
            with self.path.open("r+b", buffering=0) as file:
                is_own = _parse_holder(file.read()).get("token") == self.token
                if not is_own or find_lease(self.path.parent) != self.path:
                    self.was_taken = True
                    return
                self.count += 1
                file.seek(0)
                file.write(self._format_holder(released))
                os.fsync(file.fileno())
        except OSError as error:  # a full disk or a lost server may come back in time
            self.was_taken |= error.errno in (errno.ENOENT, errno.ESTALE)
            return
        self.renewed = began

    def create_file(self) -> bool:
        """Make the file of the lease; return False if another process was quicker."""
        folder = self.path.parent
        part = folder / f".{self.path.name}.{self.token}.part"
        began = time.monotonic()
        try:
            _write_file(part, self._format_holder(released=False))
            try:
                os.link(part, self.path)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOENT):
                    raise
                # NFS may repeat a request that it has answered; another start may remove the part
                if not part.exists() or part.stat().st_nlink != 2:
                    return False
        finally:
            part.unlink(missing_ok=True)
        if find_lease(folder) != self.path:  # the number was free, since it is an old one
            self.path.unlink(missing_ok=True)
            return False
        for path in _list_leases(folder)[1:]:
            path.unlink(missing_ok=True)  # by which a holder that was asleep learns of its loss
        self.renewed = began
        return True

    def _keep_renewing(self) -> None:
        while not self.stopped.wait(self.period):
            self.renew()

    def _format_holder(self, released: bool) -> bytes:
        holder = {
            **{"host": platform.node(), "pid": os.getpid(), "time": time.time()},
            **{"token": self.token, "renewals": self.count, "released": released},
            **{"machine": _name_machine(), "started": _read_start(os.getpid())},
        }
        return json.dumps(holder).encode().ljust(_SIZE - 1) + b"\n"


def take_lease(folder: Path, period: float = PERIOD) -> Lease | None:
    """Return the lease of a folder; None while another process holds it.

    It takes a moment, and two periods where the holder is a machine that fell silent.
    """
    folder.mkdir(parents=True, exist_ok=True)
    newest = find_lease(folder)
    if newest and not _has_ended(newest, period):
        return None
    number = _parse_number(newest) + 1 if newest else 1
    lease = Lease(folder / f"lease.{number}", period)
    return lease if lease.create_file() else None


@contextmanager
def hold_lease(folder: Path, period: float = PERIOD) -> Iterator[Lease]:
    """Hold the lease of a folder; wait, with a note, while another process has it."""
    lease = take_lease(folder, period)
    if lease is None:
        print(f"waiting for the launcher that has {folder}", file=sys.stderr)
    while lease is None:
        time.sleep(period)
        lease = take_lease(folder, period)
    with lease:
        yield lease


def is_held(folder: Path, period: float = PERIOD) -> bool:
    """Return True for a folder whose lease was renewed lately; it takes no time."""
    path = find_lease(folder)
    if path is None:
        return False
    try:
        holder, age = _parse_holder(path.read_bytes()), _measure_age(path)
    except FileNotFoundError:  # taken since
        return True
    return not _has_left(holder) and 0 <= age <= NUM_PERIODS * period


def find_lease(folder: Path) -> Path | None:
    """Return the newest lease of a folder, held or not; None where there was none."""
    return next(iter(_list_leases(folder)), None)


def refresh_folder(folder: Path) -> float:
    """Return the time of the file system, by a file written now.

    A client of NFS then sees what other machines have written into the folder, too.
    """
    path = folder / f".clock.{uuid.uuid4().hex}.part"
    try:
        _write_file(path, b"now")
        return path.stat().st_mtime
    finally:
        path.unlink(missing_ok=True)


def _list_leases(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("lease.*") if path.suffix[1:].isdecimal()]
    return sorted(found, key=_parse_number, reverse=True)


def _parse_number(path: Path) -> int:
    return int(path.suffix[1:])


def _parse_holder(content: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        if isinstance(holder := json.loads(content), dict):
            return holder
    return {}  # half a write, or a damaged file, which ends by its age


def _measure_age(path: Path) -> float:
    return refresh_folder(path.parent) - path.stat().st_mtime


def _has_ended(path: Path, period: float) -> bool:
    limit = NUM_PERIODS * period
    try:
        content = path.read_bytes()
        if _has_left(_parse_holder(content)):
            return True
        age = _measure_age(path)
        if 0 <= age <= limit:
            return False
        # the clock of the file system may have been set: it ends if nobody renews it meanwhile
        deadline = time.monotonic() + (2 * period if age > limit else limit)
        while time.monotonic() < deadline:
            time.sleep(period / 4)
            if path.read_bytes() != content:
                return False
    except FileNotFoundError:  # another process has taken it
        return False
    return True


def _has_left(holder: dict[str, Any]) -> bool:
    """Return True for a holder that has released its lease, or a dead process of this machine."""
    if holder.get("released"):
        return True
    is_here = bool(holder.get("machine")) and holder["machine"] == _name_machine()
    return is_here and _read_start(holder["pid"]) != holder["started"]


def _name_machine() -> str:
    """Name what process ids are unique in, this boot of this machine or container; or nothing."""
    if sys.platform != "linux":
        return ""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def _read_start(pid: int) -> int | None:
    """Return when a process started, in ticks since the boot, which no clock changes."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _write_file(path: Path, content: bytes) -> None:
    with path.open("xb", buffering=0) as file:
        file.write(content)
        os.fsync(file.fileno())
