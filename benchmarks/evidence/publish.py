"""Publish results: CSV files, the tables of the page, and the figures."""

import re
import time
from collections.abc import Mapping
from pathlib import Path

from experiment_kit.environment import describe_environment
from experiment_kit.errors import UserError
from experiment_kit.run_files import write_atomically

from benchmarks.evidence.figures import write_figures
from benchmarks.evidence.runner import Row, format_csv
from benchmarks.evidence.settings import Settings
from benchmarks.evidence.tables import build_tables

COMPLETE = {"stacks", "signs", "spectra", "minilm", "task"}
PAGE = Path(__file__).parents[2] / "docs" / "evidence.md"


def publish_results(
    results: Mapping[str, list[Row]], seconds: Mapping[str, float], settings: Settings,
    folder: Path, page: str,
) -> list[Path]:  # fmt: skip
    """Write one CSV file a part; where all parts are here, the page's tables and figures too."""
    written = []
    for part, rows in results.items():
        written.append(folder / "results" / "evidence" / f"{part}.csv")
        write_atomically(written[-1], format_csv(rows))
    if not set(results) >= COMPLETE:
        return written
    tables = build_tables(results, seconds, settings, describe_facts())
    write_atomically(folder / PAGE.name, replace_tables(page, tables))
    return [*written, folder / PAGE.name, *write_figures(results, settings, folder / "figures")]


def describe_facts() -> dict[str, str]:
    """Describe date, machine and versions."""
    facts = describe_environment()
    commit = (facts["commit"] or "unknown")[:10] + (" (modified)" if facts["modified"] else "")
    return {"date": time.strftime("%Y-%m-%d"), "device": facts["machine"], "commit": commit,
            "torch": facts["versions"]["torch"]}  # fmt: skip


def read_page(folder: Path) -> str:
    """Return the page of a folder, whose text stays; that of the documentation where it has none.

    Raises UserError where neither is there.
    """
    path = folder / PAGE.name if (folder / PAGE.name).exists() else PAGE
    if not path.is_file():
        raise UserError(f"{path} is no file: it must be the page whose tables are replaced")
    return path.read_text(encoding="utf-8")


def replace_tables(text: str, tables: Mapping[str, str]) -> str:
    """Replace what stands between the marks of each table.

    >>> replace_tables("<!-- begin a -->\\n\\nold\\n\\n<!-- end a -->", {"a": "new"})
    '<!-- begin a -->\\n\\nnew\\n\\n<!-- end a -->'
    """
    for name, table in tables.items():
        marks = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        pattern = re.compile(f"{marks[0]}.*?{marks[1]}", re.DOTALL)
        block = f"{marks[0]}\n\n{table}\n\n{marks[1]}"
        text, count = pattern.subn(lambda found, block=block: block, text)
        if count != 1:
            raise UserError(f"the page must have the marks of table {name} once, has {count}")
    return text
