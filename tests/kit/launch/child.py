"""`python -m tests.kit.launch.child ACTION FOLDER`: what jobs of the tests do."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil


def main() -> None:  # noqa: C901
    action, place = sys.argv[1], Path(sys.argv[2])
    with (place / "starts").open("a") as file:
        file.write(f"{os.getpid()} {os.getppid()}\n")
    tries = len((place / "starts").read_text().splitlines())
    print("started", place.name, os.environ["OMP_NUM_THREADS"], flush=True)
    action = action.removesuffix("-once") if tries == 1 else action
    if action == "save":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: ((place / "saved").touch(), sys.exit(75)))
        (place / "ready").touch()
        time.sleep(60)
    elif action in ("deaf", "stopped"):
        hang(place, action)
    elif action == "grandchild":
        child = subprocess.Popen(["sleep", "60"], start_new_session=True)
        (place / "grandchild").write_text(str(child.pid))
    elif action == "kill-server":
        while not [*place.parent.glob("*/ready")]:
            time.sleep(0.01)
        os.kill(psutil.Process().parents()[1].pid, signal.SIGKILL)
        time.sleep(60)
    elif action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "raise":
        raise ValueError("a bug")
    elif action == "list":
        (place / "running").touch()
        time.sleep(0.5)
        others = [path.parent.name for path in place.parent.glob("*/running")]
        (place / "others").write_text(" ".join(others))
        (place / "running").unlink()
    elif action == "ray":
        node = psutil.Process().parents()[3]  # above supervisor, server of forks and worker
        (place / "node").write_text(str(node.pid))
        time.sleep(2)
    elif action.isdecimal():
        raise SystemExit(int(action))
    (place / "result.json").touch()


def hang(place: Path, action: str) -> None:
    """Ignore signals, and stop if so asked."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    (place / "ready").touch()
    if action == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)


if __name__ == "__main__":
    main()
