"""Tables of the page, as Markdown."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from benchmarks.evidence.methods import STACKED, TRAINED
from benchmarks.evidence.runner import Row, mean_interval
from benchmarks.evidence.settings import Settings, TaskSettings
from benchmarks.evidence.signs import LABELS, judge_iteration
from benchmarks.evidence.spectra import KINDS, STARTS
from benchmarks.evidence.stacks import STACKS

WEIGHTS = ("pretrained", "random")
AS_PLAIN = {  # not tabulated: the page says so
    "stacks": {"attnscale", "featscale", "contranorm", "agf"},
    "task": {"gfsa_released", "attnscale", "agf"},
}


def build_tables(
    results: Mapping[str, list[Row]], seconds: Mapping[str, float], settings: Settings,
    facts: Mapping[str, Any],
) -> dict[str, str]:  # fmt: skip
    """Build each table of the page, by its name there."""
    return {
        "measured": describe_measurement(seconds, facts),
        "stacks": tabulate_stacks(results["stacks"]),
        "signs": tabulate_signs(results["signs"]),
        "spectra": tabulate_spectra(results["spectra"]),
        "minilm": tabulate_layers(results["minilm"]),
        "task": tabulate_task(results["task"], settings.task),
    }


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table; all columns but the first are numbers.

    >>> print(format_table(["method", "value"], [["plain", "1"]]))
    | method | value |
    |---|---:|
    | plain | 1 |
    """
    lines = [head, *rows]
    formatted = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([formatted[0], f"|---|{'---:|' * (len(head) - 1)}", *formatted[1:]])


def format_interval(values: Sequence[float], form: str = ".2f") -> str:
    """Format the mean and the half width of its 95 % interval, unless this rounds to 0.

    >>> format_interval([0.5, 0.7]), format_interval([0.5, 0.5])
    ('0.60 ± 1.27', '0.50')
    """
    mean, half = mean_interval(values)
    is_wide = len(values) > 1 and float(f"{half:{form}}") > 0
    return f"{mean:{form}} ± {half:{form}}" if is_wide else f"{mean:{form}}"


def select_values(rows: Iterable[Row], name: str, **wanted: Any) -> list[float]:
    """Select one measure of the rows that have the wanted values."""
    return [row[name] for row in rows if all(row[key] == value for key, value in wanted.items())]


def describe_measurement(seconds: Mapping[str, float], facts: Mapping[str, Any]) -> str:
    """Describe when, on what and with how much time the results were made."""
    total = sum(seconds.values()) / 60
    return (
        f"Measured on {facts['date']}, {facts['device']}, torch {facts['torch']}, commit "
        f"{facts['commit']}. {total:.1f} CPU minutes of one thread."
    )


def tabulate_stacks(rows: Sequence[Row]) -> str:
    """Tabulate the cosine of tokens after the last layer, one column a stack."""
    last = max(row["depth"] for row in rows)

    def format_cell(method: str, stack: str) -> str:
        wanted = {"method": method, "stack": stack, "depth": last}
        return format_interval(select_values(rows, "token_cosine", **wanted))

    return format_table(
        ["", *STACKS.values()],
        [[STACKED[name].label, *(format_cell(name, stack) for stack in STACKS)]
         for name in STACKED if name not in AS_PLAIN["stacks"]],
    )  # fmt: skip


def tabulate_signs(rows: Sequence[Row]) -> str:
    """Tabulate what the iteration does, one column a range, and how often it is as predicted."""
    lines = []
    for map_kind in ("fixed", "recomputed"):
        line, correct = [map_kind], []
        for spectrum in LABELS:
            cell = [r for r in rows if (r["map"], r["spectrum"]) == (map_kind, spectrum)]
            seeds = dict.fromkeys(row["seed"] for row in cell)
            runs = [[row for row in cell if row["seed"] == seed] for seed in seeds]
            seen = [judge_iteration(run) for run in runs]
            correct += [run[0]["predicted"] == kind for run, kind in zip(runs, seen, strict=True)]
            line.append(", ".join(f"{kind} {count}" for kind, count in Counter(seen).items()))
        lines.append([*line, f"{sum(correct)} of {len(correct)}"])
    return format_table(["A", *LABELS.values(), "as predicted"], lines)


def tabulate_spectra(rows: Sequence[Row]) -> str:
    """Tabulate HFC/LFC after the last block, one column a kind of spectrum."""
    last = max(row["depth"] for row in rows)
    kinds = ("plain", *KINDS)

    def format_cell(kind: str, start: str) -> str:
        wanted = {"kind": kind, "start": "" if kind == "plain" else start, "depth": last}
        values = select_values(rows, "hfc_lfc", **wanted)
        return format_interval(values, ".2f" if max(values) < 1 else ".1f")

    lines = [[start, *(format_cell(kind, start) for kind in kinds)] for start in STARTS]
    return format_table(["start", *kinds], lines)


def tabulate_layers(rows: Sequence[Row]) -> str:
    """Tabulate the measures before and after all layers, pretrained and random."""
    columns = {"token_cosine": "cosine", "hfc_lfc": "HFC/LFC"}
    lines = []
    for depth in (0, max(row["depth"] for row in rows)):
        line = ["embedding" if depth == 0 else f"layer {depth}"]
        place = {"depth": depth, "step": "mlp" if depth else "input"}
        for measure, weights in product(columns, WEIGHTS):
            line.append(format_interval(select_values(rows, measure, weights=weights, **place)))
        lines.append(line)
    head = [f"{name}, {weights}" for name, weights in product(columns.values(), WEIGHTS)]
    return format_table(["after", *head], lines)


def tabulate_task(rows: Sequence[Row], settings: TaskSettings) -> str:
    """Tabulate the accuracy of each method, mean and interval over seeds, one column a depth."""
    return tabulate_runs(
        "accuracy in %", rows, settings,
        lambda runs: format_interval([100 * row["accuracy"] for row in runs], ".1f"),
    )  # fmt: skip


def tabulate_runs(
    title: str, rows: Sequence[Row], settings: TaskSettings,
    format_cell: Callable[[list[Row]], str],
) -> str:  # fmt: skip
    """Tabulate the runs of each method, one column a depth; longer ones have rows of their own."""
    longer = settings.steps * settings.patience
    names = [(name, settings.steps) for name in TRAINED if name not in AS_PLAIN["task"]]
    names += [(name, longer) for name in settings.patient]
    lines = []
    for name, steps in names:
        line = [TRAINED[name].label + (f", {steps} steps" if steps == longer else "")]
        for depth in settings.depths:
            wanted = {"method": name, "depth": depth, "steps": steps}
            runs = [row for row in rows if wanted.items() <= row.items()]
            line.append(format_cell(runs) if runs else "")
        if any(line[1:]):
            lines.append(line)
    return format_table([title, *(f"{depth} layers" for depth in settings.depths)], lines)
