"""Break runs on purpose: `python -m tests.robustness interruptions|inputs|all`.

The exit status is 1 if anything was lost, different or badly answered.
"""

import argparse
import os
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.robustness", description=__doc__)
    parser.add_argument("part", choices=("interruptions", "inputs", "all"))
    parser.add_argument("--quick", action="store_true", help="a small part of each kind")
    parser.add_argument("--out", type=Path, help="folder of the tables, Markdown and CSV")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--apps", nargs="+", help="interrupt the runs of these apps alone")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # also of all processes below
    failures = 0
    if options.part != "inputs":
        from tests.robustness.interruptions import APPS, run_interruptions

        apps = options.apps or APPS
        failures += run_interruptions(options.quick, options.out, options.jobs, apps)
    if options.part != "interruptions":
        from tests.robustness.inputs import run_inputs

        failures += run_inputs(options.quick, options.out, options.jobs)
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())
