"""Break runs on purpose: `python -m tests.robustness`.

The exit status is 1 if a run was lost, or ended other than one that nothing had interrupted.
"""

import argparse
import os


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.robustness", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small part of each kind")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--apps", nargs="+", help="interrupt the runs of these apps alone")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # also of all processes below
    from tests.robustness.interruptions import APPS, run_interruptions

    apps = options.apps or APPS
    return int(run_interruptions(options.quick, options.jobs, apps) > 0)


if __name__ == "__main__":
    raise SystemExit(main())
