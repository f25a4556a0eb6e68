"""All printed tables beside our results: what is measured, and what the rest needs."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from experiment_kit.app_files import find_table_specs, list_apps
from experiment_kit.launch.overlays import find_overlay, read_settings
from experiment_kit.papers.provenance import make_anchors
from experiment_kit.papers.render import format_rows
from experiment_kit.papers.results import TableResults, read_results, select_setting
from experiment_kit.papers.spec import TableSpec, load_spec
from experiment_kit.papers.values import PaperTable, list_tables, load_table
from experiment_kit.papers.verdicts import Verdict, judge_cells

Place = tuple[str, str]  # a row and a column
NOT_COMPARABLE = "not comparable"
LETTERS = "abcdefghijklmnopqrstuvwxyz"  # one for each profile and protocol of a table


@dataclass(frozen=True)
class IndexedCell:
    """A cell: the printed value as text, and ours, one text for each setting that has it.

    Beside each of ours stands the anchor of its runs on the page of the table.
    """

    printed: str
    measured: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class MeasuredSetting:
    """The printed cells that one profile and protocol has, and the verdicts on them."""

    letter: str
    profile: str
    protocol: str
    cells: frozenset[Place]
    verdicts: Mapping[Place, Verdict]

    @property
    def comparable_cells(self) -> set[Place]:
        """The cells that can be compared with the paper's."""
        return {cell for cell, verdict in self.verdicts.items() if verdict.kind != NOT_COMPARABLE}

    def describe_cells(self) -> str:
        """Count the cells, and their verdicts with the reasons why some have none."""
        kinds = Counter(verdict.kind for verdict in self.verdicts.values())
        apart = {v.reason for v in self.verdicts.values() if v.kind == NOT_COMPARABLE}
        reasons = {NOT_COMPARABLE: f" ({'; '.join(sorted(apart))})"}
        counts = [f"{n} {kind}{reasons.get(kind, '')}" for kind, n in sorted(kinds.items())]
        verdicts = f"; verdicts: {', '.join(counts)}" if counts else ""
        return f"{count_cells(len(self.cells))} measured{verdicts}"


@dataclass(frozen=True)
class IndexedTable:
    """A printed table, how it is made, and what was measured; some have no spec, or no results.

    `note` is a sentence on the results of this index.
    """

    paper: PaperTable
    spec: TableSpec | None = None
    results: TableResults | None = None
    note: str = ""

    @cached_property
    def printed_cells(self) -> list[Place]:
        """The rows and columns of the printed values, those left out that describe a row."""
        columns = self.paper.measurable
        rows = self.paper.rows
        return [(r.key, c) for r in rows for c in columns if r.values.get(c) is not None]

    @cached_property
    def settings(self) -> list[MeasuredSetting]:
        """The profiles and protocols that have runs."""
        found, results = [], self.results
        for letter, setting in zip(LETTERS, results.settings if results else [], strict=False):
            assert results is not None
            cells = select_setting(results.cells, *setting)
            places = {*zip(cells["row"], cells["column"], strict=True)} & {*self.printed_cells}
            verdicts = judge_cells(results, *setting)
            found.append(MeasuredSetting(letter, *setting, frozenset(places), verdicts))
        return found

    @property
    def measured_cells(self) -> set[Place]:
        """The printed cells that some setting has."""
        return {cell for setting in self.settings for cell in setting.cells}

    @property
    def comparable_cells(self) -> set[Place]:
        """The printed cells that some setting has, and that can be compared with the paper's."""
        return {cell for setting in self.settings for cell in setting.comparable_cells}

    @cached_property
    def needed_data(self) -> list[Place]:
        """App and data set of the cells that are not comparable yet, where training needs it."""
        return [*dict.fromkeys((app, data) for app, data, _ in self._list_missing())]

    @cached_property
    def needed_weights(self) -> list[Place]:
        """App and backbone of these cells, where training starts from pretrained weights."""
        found = dict.fromkeys((app, backbone) for app, _, backbone in self._list_missing())
        return [(app, backbone) for app, backbone in found if has_weights(app, backbone)]

    def _list_missing(self) -> Iterator[tuple[str, str, str]]:
        """Yield app, data and backbone of every cell that is trained and not comparable yet."""
        if self.spec is None:
            return
        every = [(row, column) for row in self.spec.rows for column in self.spec.columns]
        for row, column in every:
            setting = self.spec.setting(row, column)
            if (row, column) not in self.comparable_cells and setting.source != "efficiency":
                app = self.spec.rows[row].app or self.spec.app
                yield app, setting.data, setting.backbone

    def list_rows(self) -> Iterator[tuple[str, list[IndexedCell]]]:
        """Yield the label and the cells of every printed row, then of ours that are measured."""
        labels = self.spec.labels(self.paper) if self.spec else self.paper.labels
        ours = dict(self._list_measured())
        printed = {row.key for row in self.paper.rows}
        for key, label in labels.items():
            cells = [
                IndexedCell(self._format_printed(key, column), ours.get((label, column), ()))
                for column in self.paper.columns
            ]
            if key in printed or any(cell.measured for cell in cells):
                yield label, cells

    def _list_measured(self) -> Iterator[tuple[Place, tuple[tuple[str, str], ...]]]:
        """Yield label and column of every measured cell, and its texts with their anchors."""
        found: dict[Place, list[tuple[str, str]]] = {}
        labels = self.spec.labels(self.paper) if self.spec else {}
        anchors = make_anchors(self.results) if self.results else {}
        for setting in self.settings:
            kinds = {
                (labels[row], c): setting.verdicts[row, c].kind
                for row, c in setting.comparable_cells
            }
            assert self.results is not None
            formatted = format_rows(self.results, setting.profile, setting.protocol)
            for row, (label, cells) in zip(labels, formatted, strict=True):
                anchor = anchors.get((row, setting.profile, setting.protocol), "")
                for column, cell in cells.items():
                    if cell.estimate is None:
                        continue
                    kind = kinds.get((label, column))
                    text = f"{cell.measured} {setting.letter}{f', {kind}' if kind else ''}"
                    found.setdefault((label, column), []).append((text, anchor))
        yield from ((place, tuple(texts)) for place, texts in found.items())

    def _format_printed(self, row: str, column: str) -> str:
        value = self.paper.printed_value(row, column)
        if value is None:
            return ""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return self.paper.columns[column].format_value(value) if is_number else str(value)


def count_cells(number: int) -> str:
    """Name a number of printed cells.

    >>> count_cells(1), count_cells(0)
    ('1 printed cell', '0 printed cells')
    """
    return "1 printed cell" if number == 1 else f"{number} printed cells"


def has_weights(app: str, backbone: str) -> bool:
    """Return True for a backbone that starts from pretrained weights."""
    model = read_settings(find_overlay(app, "backbone", backbone).resolve()).get("model", {})
    return bool(model.get("weights"))


def read_index(results: Path, notes: Mapping[str, str] | None = None) -> list[IndexedTable]:
    """Read all printed tables, with what a folder of results has of them, and notes by table."""
    specs = {path.stem: path for app in list_apps() for path in find_table_specs(app)}
    tables = []
    for name in list_tables():
        paper, found = load_table(name), None
        spec = load_spec(specs[name]) if name in specs else None
        if spec and (path := results / f"{name}.csv").is_file():
            found = TableResults(spec, paper, read_results(path, paper))
        tables.append(IndexedTable(paper, spec, found, (notes or {}).get(name, "")))
    return tables


def group_by_paper(tables: Sequence[IndexedTable]) -> dict[str, list[IndexedTable]]:
    """Return the tables of each paper by its name, tables before figures, by their numbers."""
    papers: dict[str, list[IndexedTable]] = {}
    for table in sorted(tables, key=lambda table: _rank_table(table.paper)):
        papers.setdefault(table.paper.title.partition(" paper, ")[0], []).append(table)
    return papers


def _rank_table(paper: PaperTable) -> tuple[str, bool, int]:
    return paper.paper, paper.kind != "Table", paper.number


def describe_totals(tables: Sequence[IndexedTable]) -> str:
    """Count the tables, their printed values, the measured ones and the verdicts."""
    values = sum(v is not None for t in tables for row in t.paper.rows for v in row.values.values())
    kinds = Counter(
        verdict.kind
        for table in tables
        for setting in table.settings
        for verdict in setting.verdicts.values()
        if verdict.kind != NOT_COMPARABLE
    )
    verdicts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"
    printed = sum(len(table.printed_cells) for table in tables)
    measured = sum(len(table.measured_cells) for table in tables)
    comparable = sum(len(table.comparable_cells) for table in tables)
    specs = sum(table.spec is not None for table in tables)
    return (
        f"The papers print {values:,} values in {len(tables)} tables and figures; {printed:,} of "
        f"them can be measured, the others describe a row. {specs} tables have a spec, from which "
        f"make table makes them. {count_cells(measured)} are measured under some profile and "
        f"protocol, {comparable} so that they can be compared with the paper. Verdicts on these: "
        f"{verdicts}."
    )
