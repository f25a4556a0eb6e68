"""Measure speed and memory as ratios, side by side in one run: `make bench`.

A benchmark is no test: aims that are missed are shown, and the exit status is 0 either way.
"""

import argparse
import io
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

PARTS = ("operators", "agf", "training")
# up to half an hour on a CPU: make bench-nlp and so on
ON_DEMAND = ("graph", "nlp", "sequence", "speech", "vision")
RESULTS = Path(__file__).parent / "results"


def arguments(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", choices=PARTS + ON_DEMAND, nargs="+", default=PARTS)
    parser.add_argument("--threads", type=int, default=1, help="of the CPU; timings assume 1")
    parser.add_argument("--quick", action="store_true", help="toy sizes: does it run?")
    parser.add_argument(
        *("--write", "-w"), nargs="?", type=Path, const=RESULTS, metavar="FOLDER",
        help="write <date>-<device>[-<part>].md there, in benchmarks/results by default",
    )  # fmt: skip
    return parser.parse_args(args)


def markdown(facts: dict[str, str], tables: Sequence[Table]) -> str:
    """The same tables for a repository's pages."""
    console = Console(file=io.StringIO(), width=400)
    for table in tables:
        title, table.title, table.box = table.title, None, box.MARKDOWN
        console.print(f"## {title}", table)
    lines = (line.rstrip() for line in console.file.getvalue().splitlines())
    listed = (f"- {name}: {value}" for name, value in facts.items())
    return "\n".join(["# Benchmarks", "", *listed, "", *lines, ""])


def main(args: Sequence[str] | None = None) -> None:
    options = arguments(args)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # before torch starts any
    from measure import machine

    facts, console = machine(options.device), Console()
    console.width = max(console.width, 140)  # where it is no terminal, rich takes 80
    console.print(*(f"{name}: {value}" for name, value in facts.items()), sep="\n", highlight=False)
    tables = []
    for part in options.only:
        for table in import_module(part).tables(options.device, options.quick):
            console.print(table)
            tables.append(table)
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        of = "" if options.only == PARTS else f"-{'-'.join(options.only)}"
        path = options.write / f"{facts['date']}-{options.device}{of}.md"
        path.write_text(markdown(facts, tables))
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
