"""The checks of a spec: names are those of the printed table and of overlays, rows differ."""

from typing import TYPE_CHECKING

from experiment_kit.errors import UserError
from experiment_kit.launch.overlays import MODULES, find_overlay
from experiment_kit.papers.values import PaperTable, check_name, load_table

if TYPE_CHECKING:
    from experiment_kit.papers.spec import TableSpec

_OVERLAYS = ("data", "backbone", "recipe", "method")


def check_spec(spec: "TableSpec", paper: PaperTable) -> None:
    """Refuse a spec with an unknown name, a cell without an experiment, or a row that is another's.

    Raises UserError.
    """
    _check_rows_and_columns(spec, paper)
    _check_cells(spec)
    _check_overlays(spec)
    _check_equal_rows(spec, paper)


def _check_rows_and_columns(spec: "TableSpec", paper: PaperTable) -> None:
    printed = [row.key for row in paper.rows]
    for key in spec.rows:
        check_name(key, printed, f"row of {paper.id}")
    measured = [column for column in paper.columns if column not in paper.averages]
    for column in spec.columns:
        check_name(column, measured, f"column of {paper.id}")
    for key, row in spec.extra.items():
        if key in printed:
            raise UserError(f"extra.{key} is a row of {paper.id}; use rows.")
        if not row.label:
            raise UserError(f"extra.{key} lacks label.")
    for key in spec.cited:
        check_name(key, [k for k in printed if k not in spec.rows], f"row of {paper.id} to cite")
    for key, computed in spec.computed.items():
        left = [column for column in measured if column not in spec.columns]
        check_name(key, left, f"column of {paper.id} to compute")
        check_name(computed.column, spec.columns, f"column of {paper.id} to compute {key} of")
        for name in (*computed.minus, *computed.minus.values()):
            check_name(name, spec.rows, f"row of {paper.id} to compute {key} of")
    if spec.significance:
        load_table(spec.significance.table)
        check_name(spec.significance.row, printed, f"row of {paper.id} to test against")


def _check_cells(spec: "TableSpec") -> None:
    for name in ("source", "metric", "scale"):
        if spec.start and getattr(spec.start, name):
            raise UserError(f"start.{name} is of a cell: what it starts from has no number.")
    for key, row in spec.all_rows.items():
        for column in row.at:
            check_name(column, spec.columns, f"column in {key}.at")
        for column in spec.columns:
            setting = spec.setting(key, column)
            check_name(setting.source, [*MODULES], "source")
            for name in ("data", "backbone", "method", "metric"):
                if not getattr(setting, name):
                    raise UserError(f"row {key}, column {column} lacks {name}.")


def _check_overlays(spec: "TableSpec") -> None:
    """Refuse a cell whose data set, backbone, recipe or method is no overlay of its app."""
    places: dict[tuple[str, str, str], tuple[str, str]] = {}
    for key, row in spec.all_rows.items():
        for column in spec.columns:
            setting, app = spec.setting(key, column), row.app or spec.app
            for cell in (setting, *([setting.refine(spec.start)] if spec.start else [])):
                for kind in _OVERLAYS:
                    if name := getattr(cell, kind):
                        places.setdefault((app, kind, name), (key, column))
    for overlay, (key, column) in places.items():
        try:
            find_overlay(*overlay)
        except UserError as error:
            raise UserError(f"row {key}, column {column}: {error}") from error


def _check_equal_rows(spec: "TableSpec", paper: PaperTable) -> None:
    """Refuse two rows that have the same run in every column, which is one measurement.

    A paper may print one experiment in two versions of itself.
    """
    labels = spec.labels(paper)
    found: dict[object, str] = {}
    for key, row in spec.all_rows.items():
        settings = tuple(spec.setting(key, column) for column in spec.columns)
        name = labels[key].partition(", version=")[0]
        other = found.setdefault((row.app or spec.app, settings), key)
        if name != labels[other].partition(", version=")[0]:
            raise UserError(
                f"rows {other} and {key} have the same run in every column: change or remove one"
            )
