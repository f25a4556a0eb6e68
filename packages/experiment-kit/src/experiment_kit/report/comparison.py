"""Methods side by side on one data set: the numbers of their runs, and what they did."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean, stdev

from experiment_kit.report import drawings, page
from experiment_kit.report.curves import Run
from experiment_kit.runs import write_atomically

MISSING = "–"
ABOUT = (
    "Mean ± sample standard deviation over seeds; a method without numbers has no finished run. "
    "Samples or steps per second are of one device while it trains. High over low frequency and "
    "cosine are of the tokens behind the last layer: a low ratio and a cosine near 1 are "
    "over-smoothing."
)


@dataclass(frozen=True)
class Comparison:
    """The finished runs of some methods; `row` of a run is its method."""

    title: str
    methods: Sequence[str]
    runs: Sequence[Run]

    def lines(self) -> tuple[list[str], list[list[str]]]:
        """The head of the table and its rows as text, one a method."""
        found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for run in self.runs:
            for name, value in facts(run).items():
                found[run.row][name].append(value)
        names = list(dict.fromkeys(name for method in found.values() for name in method))
        rows = [[m, *(_text(found[m][name]) for name in names)] for m in self.methods]
        return ["method", *names], rows

    def write(self, path: Path) -> None:
        """Write the page: the table, then training curves, depth profile and responses."""
        write_atomically(path, page.document(self.title, self._body()))

    def _body(self) -> Iterator[str]:
        head, rows = self.lines()
        yield f'<h1>{escape(self.title)}</h1>\n<p class="soft">{escape(ABOUT)}</p>'
        yield page.table(head, [map(escape, row) for row in rows])
        yield from drawings.draw(self.runs, {m: m for m in self.methods}, self.title)


def facts(run: Run) -> dict[str, float]:
    """What a table says of a run: its size, its scores, its speed, and how smooth it left tokens.

    >>> facts(Run("gfsa", {"parameters": 72, "metrics": {"test/accuracy": 0.5}}, {}, {}))
    {'parameters': 72, 'accuracy': 0.5}
    """
    found = {"parameters": run.result["parameters"]}
    found |= {key.removeprefix("test/"): value for key, value in run.result["metrics"].items()}
    if (steps := run.scalars.get("speed/steps_per_second")) is not None:
        size = run.config["data"]["init_args"].get("batch_size")  # batches of speech go by seconds
        found["samples/s" if size else "steps/s"] = float(steps.median()) * (size or 1)
    if depth := run.spectral.get("depth"):
        found["HFC/LFC"], found["token cosine"] = depth[-1]["hfc_lfc"], depth[-1]["token_cosine"]
    return found


def _text(values: Sequence[float]) -> str:
    """Write a mean with four digits, or a count whole.

    >>> _text([22050736, 22050736]), _text([0.5, 0.75]), _text([])
    ('22,050,736', '0.625 ± 0.18', '–')
    """
    if not values:
        return MISSING
    if all(isinstance(value, int) for value in values):
        return f"{values[0]:,}"
    deviation = f" ± {stdev(values):.2g}" if len(values) > 1 else ""
    return f"{fmean(values):.4g}{deviation}"
