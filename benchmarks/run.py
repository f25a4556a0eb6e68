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

DEFAULT = ("operators", "agf", "training")
# whole models, up to half an hour each on a CPU: `make bench-<app>`
ON_DEMAND = ("diagnosis", "graph", "monitor", "nlp", "peers", "sequence", "speech", "vision")
RESULTS = Path(__file__).parent / "results"


def parse_arguments(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", choices=DEFAULT + ON_DEMAND, nargs="+", default=DEFAULT)
    parser.add_argument(
        "--threads", type=int, default=1, help="of the CPU; the recorded results use 1"
    )
    parser.add_argument(
        "--quick", action="store_true", help="run at toy sizes, to see that it works"
    )
    parser.add_argument(
        *("--write", "-w"), nargs="?", type=Path, const=RESULTS, metavar="FOLDER",
        help="write <date>-<device>[-<name>].md there, in benchmarks/results by default",
    )  # fmt: skip
    return parser.parse_args(args)


def format_markdown(facts: dict[str, str], tables: Sequence[Table]) -> str:
    """Format the tables as the markdown of a page."""
    console = Console(file=io.StringIO(), width=400)
    for table in tables:
        title, table.title, table.box = table.title, None, box.MARKDOWN
        console.print(f"## {title}", table)
    lines = (line.rstrip() for line in console.file.getvalue().splitlines())
    listed = (f"- {name}: {value}" for name, value in facts.items())
    return "\n".join(["# Benchmarks", "", *listed, "", *lines, ""])


def main(args: Sequence[str] | None = None) -> None:
    options = parse_arguments(args)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # before torch starts any
    from measure import describe_machine

    facts, console = describe_machine(options.device), Console()
    console.width = max(console.width, 140)  # rich takes 80 columns where there is no terminal
    console.print(*(f"{name}: {value}" for name, value in facts.items()), sep="\n", highlight=False)
    tables = []
    for name in options.only:
        for table in import_module(name).build_tables(options.device, options.quick):
            console.print(table)
            tables.append(table)
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        names = "" if options.only == DEFAULT else f"-{'-'.join(options.only)}"
        path = options.write / f"{facts['date']}-{options.device}{names}.md"
        path.write_text(format_markdown(facts, tables))
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
