"""The page of a table: the numbers, then figures of the runs that are on this machine."""

from collections import defaultdict
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from experiment_kit.launch.figures import draw_figures, write_page
from experiment_kit.launch.records import RunRecord, read_record
from experiment_kit.papers import render
from experiment_kit.papers.results import SETTING, TableResults

TEMPLATE = Path(str(files("experiment_kit.papers"))) / "templates" / "table.html"


def write_table_page(path: Path, results: TableResults, folders: Mapping[str, Path]) -> None:
    """Write the page of a table with figures of the runs in `folders`, which maps hashes."""
    spec, paper = results.spec, results.paper
    records = _read_records(results, folders)
    sections = [
        {
            "profile": setting[0],
            "protocol": setting[1],
            "description": render.describe_setting(spec, *setting),
            "command": render.format_command(results, *setting),
            "rows": list(render.format_rows(results, *setting)),
            "tests": render.format_tests(results, *setting),
            "places": _draw_places(results, setting, records.get(setting, {})),
        }
        for setting in results.settings
    ]
    head = ["method", *(paper.headings[key] for key in paper.measurable)]
    about = f"{paper.citation}. {render.describe_cells(results)} {spec.remark}"
    context = {"title": paper.title, "caption": paper.caption, "notes": paper.notes}
    write_page(path, TEMPLATE, about=about, head=head, sections=sections, **context)


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
    results: TableResults, setting: tuple[str, str], records: Mapping[str, list[RunRecord]]
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
        }
        for place in dict.fromkeys((*ordered, *records))
    ]
