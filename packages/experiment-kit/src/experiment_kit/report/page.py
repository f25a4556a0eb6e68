"""One static page per table: the numbers, then what the runs behind them did."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

import pandas as pd

from experiment_kit.report import drawings
from experiment_kit.report.curves import Run, read
from experiment_kit.runs import write_atomically
from experiment_kit.tables import view
from experiment_kit.tables.paper import PaperTable
from experiment_kit.tables.spec import TableSpec


def write(
    path: Path,
    spec: TableSpec,
    paper: PaperTable,
    frame: pd.DataFrame,
    runs: Mapping[str, Sequence[Path]],
) -> None:
    """Write the page of a table, with figures of the runs of each row, in one step."""
    write_atomically(path, document(paper.title, _page(spec, paper, frame, runs)))


def document(title: str, body: Iterable[str]) -> str:
    """Return a page that stands alone: its style is inside, and it names no address."""
    style = (files("experiment_kit.report") / "page.css").read_text(encoding="utf-8")
    head = [
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>",
    ]
    return "\n".join([*head, *body]) + "\n"


def table(head: Iterable[str], body: Iterable[Iterable[str]]) -> str:
    """Return a table whose cells are HTML already."""
    heads = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = ("".join(f"<td>{cell}</td>" for cell in line) for line in body)
    rows = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead>\n'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _page(
    spec: TableSpec,
    paper: PaperTable,
    frame: pd.DataFrame,
    runs: Mapping[str, Sequence[Path]],
) -> Iterator[str]:
    yield f"<h1>{escape(paper.title)}</h1>\n<p>{escape(paper.caption)}</p>"
    about = f"{paper.citation}. {view.legend(paper, frame)} {spec.remark}"
    yield f'<p class="soft">{escape(about)}</p>'
    drawn = _by_setting(runs, paper)
    for setting in view.settings(frame):
        yield from _section(spec, paper, frame, setting, drawn.get(setting, {}))
    if frame.empty:
        yield "<p>Nothing has been measured yet.</p>"
    if paper.notes:
        yield "<h2>Notes on the printed values</h2>"
        yield f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in paper.notes)}</ul>"


def _by_setting(
    runs: Mapping[str, Sequence[Path]], paper: PaperTable
) -> dict[tuple[str, str], dict[str, list[Run]]]:
    found: dict[tuple[str, str], dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for row, folders in runs.items():
        for run in filter(None, (read(row, folder) for folder in folders)):
            setting, data = (run.result["profile"], run.result["protocol"]), run.result["data"]
            place = data if data in paper.columns else f"{data}-{run.result['backbone']}"
            found[setting][place].append(run)
    return found


def _section(
    spec: TableSpec,
    paper: PaperTable,
    frame: pd.DataFrame,
    setting: tuple[str, str],
    runs: Mapping[str, Sequence[Run]],
) -> Iterator[str]:
    yield f"<h2>Profile {escape(setting[0])}, protocol {escape(setting[1])}</h2>"
    yield f"<p>{escape(view.explain(spec, *setting))}</p>"
    yield f"<pre><code>{escape(view.command(spec, *setting, frame))}</code></pre>"
    yield _results(spec, paper, frame, setting)
    if tests := view.p_values(frame, paper, spec, *setting):
        yield f"<h3>Significance</h3><p>{escape(tests.caption)}</p>"
        yield table(tests.head, [map(escape, line) for line in tests.body])
    # Rows that can be run come first, so that they have the distinct colours.
    labels = dict(sorted(spec.labels(paper).items(), key=lambda row: row[0] not in spec.made))
    places = [column for column in paper.columns if column in runs]
    for i, place in enumerate([*places, *(p for p in runs if p not in places)]):
        name = paper.columns[place].name if place in paper.columns else place
        title = ", ".join([name, *setting])
        figures = "\n".join(drawings.draw(runs[place], labels, title))
        summary = f"Runs on {escape(name)} <code>{place}</code>"
        yield f"<details{' open' * (i == 0)}><summary>{summary}</summary>\n{figures}</details>"


def _results(
    spec: TableSpec, paper: PaperTable, frame: pd.DataFrame, setting: tuple[str, str]
) -> str:
    head = ["method", *(paper.headings[key] for key in paper.shown)]
    body = (
        [escape(label), *map(_cell, cells.values())]
        for label, cells in view.lines(frame, paper, spec, *setting)
    )
    return table(head, body)


def _cell(entry: view.Entry) -> str:
    kind = {True: "good", False: "bad", None: "even"}[entry.better]
    difference = f' <span class="{kind}">{entry.difference}</span>' if entry.difference else ""
    return f"{escape(entry.measured)}<small>{escape(entry.printed)}{difference}</small>"
