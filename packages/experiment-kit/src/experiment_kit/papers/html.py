"""The page of a table: the numbers, then figures, settings and files of the runs that are here."""

from collections import defaultdict
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from experiment_kit.pages.records import RunRecord, read_record
from experiment_kit.pages.run_figures import draw_figures
from experiment_kit.pages.run_settings import (
    ABSENT,
    FILES,
    compare_settings,
    link_run_file,
    list_runs,
)
from experiment_kit.pages.tables import Cell, PageTable, find_best
from experiment_kit.pages.template import link_file, write_page
from experiment_kit.papers import cell_statistics as statistics
from experiment_kit.papers import render
from experiment_kit.papers.provenance import RunLine, list_run_lines, make_anchors
from experiment_kit.papers.render import FormattedCell
from experiment_kit.papers.results import SETTING, TableResults
from experiment_kit.papers.spec import TableSpec

TEMPLATE = Path(str(files("experiment_kit.papers"))) / "templates" / "table.html"
MARKS = (
    "▲ better and ▼ worse mark a difference to the paper beyond the 95 % confidence interval of "
    "our mean (Student's t over seeds). Bold is the best of its column: its interval overlaps no "
    "other one. Each of our numbers leads to its runs."
)


def write_table_page(
    path: Path, results: TableResults, folders: Mapping[str, Path], out: Path
) -> None:
    """Write the page of a table with figures of the runs in `folders`, which maps hashes.

    Runs of other machines lead to their published configs and records in `out`.
    """
    spec, paper = results.spec, results.paper
    records = _read_records(results, folders)
    sections = [
        {
            "profile": setting[0],
            "protocol": setting[1],
            "description": render.describe_setting(spec, *setting),
            "command": render.format_commands(results, *setting),
            "tables": _tabulate_cells(results, *setting),
            "statistics": _tabulate("statistics", statistics.format_statistics(results, *setting)),
            "pairs": _tabulate("paired seeds", statistics.format_pairs(results, *setting)),
            "tests": _tabulate("significance", statistics.format_tests(results, *setting)),
            "runs": _tabulate_runs(results, setting, folders, out, path),
            "places": _draw_places(results, setting, records.get(setting, {}), path),
        }
        for setting in results.settings
    ]
    explained = statistics.EXPLANATION if results.settings else ""
    about = [f"{paper.citation}.", render.describe_cells(results), spec.remark, explained]
    context = {"title": paper.title, "caption": paper.caption, "notes": paper.notes}
    write_page(path, TEMPLATE, about=about, sections=sections, **context)


def _tabulate_cells(results: TableResults, profile: str, protocol: str) -> list[PageTable]:
    """Return the rows and columns that have a measured cell, then all, where there are more."""
    paper = results.paper
    rows = dict(render.format_rows(results, profile, protocol))
    anchors, keys = make_anchors(results), results.spec.labels(paper)
    links = {
        keys[row]: f"#{anchor}"
        for (row, *place), anchor in anchors.items()
        if row in keys and place == [profile, protocol]
    }
    best = {column: _find_best(rows, column, results) for column in paper.measurable}
    measured = {
        label: {column for column, cell in cells.items() if cell.estimate}
        for label, cells in rows.items()
    }
    some = [column for column in paper.measurable if any(column in m for m in measured.values())]
    tables = []
    for name, columns, shown in (
        ("measured", some, [label for label in rows if measured[label]]),
        ("all", paper.measurable, [*rows]),
    ):
        head = ["method", *(paper.headings[column] for column in columns)]
        body = [
            [
                Cell(label),
                *(_make_cell(rows[label][c], best[c] == label, links.get(label)) for c in columns),
            ]
            for label in shown
        ]
        tables.append(PageTable(f"{name} cells, {profile}, {protocol}", head, body, MARKS))
    few, every = tables
    return (
        [few, every]
        if len(few.rows) < len(every.rows) or len(few.head) < len(every.head)
        else [every]
    )


def _find_best(
    rows: Mapping[str, Mapping[str, FormattedCell]], column: str, results: TableResults
) -> str | None:
    estimates = {label: e for label, cells in rows.items() if (e := cells[column].estimate)}
    return find_best(estimates, results.paper.columns[column].higher_is_better)


def _make_cell(cell: FormattedCell, is_best: bool, link: str | None) -> Cell:
    return Cell(
        cell.measured,
        cell.estimate.mean if cell.estimate else None,
        note=cell.printed,
        difference=cell.difference,
        verdict="" if cell.better is None else "better" if cell.better else "worse",
        is_best=is_best,
        href=(link or "") if cell.estimate else "",
    )


def _tabulate_runs(
    results: TableResults,
    setting: tuple[str, str],
    folders: Mapping[str, Path],
    out: Path,
    page: Path,
) -> PageTable:
    """List the seeds of every cell with the files of their runs; the first of a row has its id."""
    spec, headings, anchors = results.spec, results.paper.headings, make_anchors(results)
    labels = spec.labels(results.paper)
    body, rows = [], set()
    for line in list_run_lines(results, *setting, out):
        anchor = "" if line.row in rows else anchors[line.row, *setting]
        rows.add(line.row)
        texts = [line.run, line.commit, line.environment]
        body.append(
            [
                Cell(labels.get(line.row, line.row), id=anchor),
                Cell(headings[line.column]),
                Cell(str(line.seed), line.seed),
                Cell(line.value, float(line.value)),
                *map(Cell, texts),
                *_link_files(line, folders.get(line.run), _find_source(spec, line), page),
            ]
        )
    head = ["method", "column", "seed", "value", "run", "commit", "environment", *FILES.values()]
    return PageTable(f"runs, {', '.join(setting)}", head, body)


def _find_source(spec: TableSpec, line: RunLine) -> str:
    """Return the file that has the value of a line."""
    is_known = line.row in spec.all_rows and line.column in spec.columns
    return spec.setting(line.row, line.column).source if is_known else "result"


def _link_files(line: RunLine, folder: Path | None, source: str, page: Path) -> list[Cell]:
    """Link the files of a run that is here, else its published config and record."""
    if folder is not None:
        names = [f"{source}.json" if name == "result.json" else name for name in FILES]
        return [link_run_file(folder, name, page) for name in names]
    config = Cell("config", href=link_file(line.config, page)) if line.config else Cell(ABSENT)
    record = Cell("record", href=link_file(line.record, page)) if line.record else Cell(ABSENT)
    return [config, *[record] * (len(FILES) - 1)]


def _tabulate(name: str, formatted: statistics.FormattedTable | None) -> PageTable | None:
    if formatted is None:
        return None
    body = [[*map(Cell, line)] for line in formatted.body]
    return PageTable(name, formatted.head, body, formatted.caption)


def _read_records(
    results: TableResults, folders: Mapping[str, Path]
) -> dict[tuple[str, str], dict[str, list[RunRecord]]]:
    """Read the runs that are here by profile and protocol, then by data set."""
    found: dict[tuple[str, str], Any] = defaultdict(lambda: defaultdict(list))
    runs = results.runs[["row", "run", *SETTING]].drop_duplicates()  # columns may share a run
    for row, run, profile, protocol in runs.itertuples(index=False):
        if run in folders and (record := read_record(row, folders[run], profile=profile)):
            result, data = record.result, record.result["data"]
            place = data if data in results.paper.columns else f"{data}-{result['backbone']}"
            found[profile, protocol][place].append(record)
    return found


def _draw_places(
    results: TableResults,
    setting: tuple[str, str],
    records: Mapping[str, list[RunRecord]],
    page: Path,
) -> list[dict[str, Any]]:
    spec, columns = results.spec, results.paper.columns
    # rows that can be run come first, so that they have the distinct colors
    rows = spec.labels(results.paper).items()
    labels = dict(sorted(rows, key=lambda row: row[0] not in spec.all_rows))
    names = {place: columns[place].name if place in columns else place for place in records}
    ordered = [place for place in columns if place in records]
    return [
        {
            "key": place,
            "name": names[place],
            "figures": draw_figures(records[place], labels, ", ".join([names[place], *setting])),
            "settings": compare_settings(records[place], labels),
            "runs": list_runs(records[place], labels, page),
        }
        for place in dict.fromkeys((*ordered, *records))
    ]
