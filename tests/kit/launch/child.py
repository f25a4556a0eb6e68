"""`python -m tests.kit.launch.child ACTION FOLDER`: what jobs of the tests do."""

import os
import signal
import sys
import time
from pathlib import Path

import psutil


def main() -> None:
    action, place = sys.argv[1], Path(sys.argv[2])
    with (place / "starts").open("a") as file:
        file.write(f"{os.getpid()} {os.getppid()}\n")
    tries = len((place / "starts").read_text().splitlines())
    print("started", place.name, os.environ["OMP_NUM_THREADS"], flush=True)
    if action == "save":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: ((place / "saved").touch(), sys.exit(75)))
        (place / "ready").touch()
        time.sleep(60)
    elif action == "kill" or (action == "kill-once" and tries == 1):
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
        node = psutil.Process().parents()[2]  # above the server of forks and the worker
        (place / "node").write_text(str(node.pid))
        time.sleep(2)
    elif action.isdecimal():
        raise SystemExit(int(action))
    (place / "result.json").touch()


if __name__ == "__main__":
    main()
