"""`stand_ins.yaml` of an app: data that ships, and a small network, for what a paper trains."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any

from experiment_kit.app_files import find_app_folder
from experiment_kit.errors import UserError
from experiment_kit.launch.options import EigenvalueOptions
from experiment_kit.launch.overlays import read_settings
from experiment_kit.launch.plan import find_data
from experiment_kit.papers.spec import Cell, Setting, TableSpec, parse_setting

STAND_INS = "stand_ins.yaml"
PROFILE = "smoke"  # the only one that takes stand-ins
SAMPLES = 8  # on which eigenvalues are measured


@dataclass(frozen=True)
class StandIns:
    """The settings that stand in by pattern `data/backbone`, and the arguments of every cell."""

    cells: Mapping[str, Setting] = field(default_factory=dict)
    args: tuple[str, ...] = ()

    def find_setting(self, data: str, backbone: str) -> Setting | None:
        """Return the setting that stands in; None where there is none."""
        name = f"{data}/{backbone}"
        return next((s for pattern, s in self.cells.items() if fnmatch(name, pattern)), None)


@dataclass(frozen=True)
class SmokeCell:
    """The cell of a table that a smoke run makes, and what stands in; "" for the paper's data."""

    cell: Cell
    stand_in: str = ""


def read_stand_ins(app: str) -> StandIns:
    """Read the stand-ins of an app; none if it has no file, UserError for a mistake in it."""
    folder = find_app_folder(app)
    path = folder / STAND_INS if folder else Path()
    if folder is None or not path.is_file():
        return StandIns()
    settings = read_settings(path)
    try:
        args = parse_setting({"args": settings.get("args", [])}, "args").args
        cells: Any = settings.get("cells", {})
        return StandIns({p: parse_setting(s, f"cells.{p}") for p, s in cells.items()}, args)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def choose_smoke_cell(spec: TableSpec, protocol: str = "validation") -> SmokeCell | None:
    """Choose the first cell whose data ships, else the first for whose data something stands in.

    The cell has the profile smoke and seed 0. None where there is neither.
    """
    fallback = None
    apps = dict.fromkeys(row.app or spec.app for row in spec.rows.values())
    stand_ins_of = {app: read_stand_ins(app) for app in apps}
    for row, column in product(spec.rows, spec.columns):
        app = spec.rows[row].app or spec.app
        stand_ins, setting = stand_ins_of[app], spec.setting(row, column)
        found = stand_ins.find_setting(setting.data, setting.backbone)
        if found is None and isinstance(find_data(app, setting.data), Path):
            return _make_cell(spec, row, column, protocol, Setting(args=stand_ins.args))
        if found is not None and fallback is None:
            finer = replace(found, args=stand_ins.args + found.args)
            fallback = _make_cell(spec, row, column, protocol, finer)
    return fallback


def _make_cell(spec: TableSpec, row: str, column: str, protocol: str, finer: Setting) -> SmokeCell:
    """Make the cell of a setting that is refined, and what it starts from as well."""
    chosen = spec.rows[row]
    at = {column: chosen.at.get(column, Setting()).refine(finer)}
    start = spec.start and _refine_start(spec, chosen.app or spec.app)
    eigenvalues = EigenvalueOptions(SAMPLES) if spec.eigenvalues else None
    rows = {row: replace(chosen, at=at)}
    refined = replace(spec, rows=rows, start=start, eigenvalues=eigenvalues)
    (cell,) = refined.list_cells(PROFILE, protocol, [0], [row], [column])
    before = spec.setting(row, column)
    names = [finer.data or before.data, finer.backbone or before.backbone]
    printed = [before.data, before.backbone]
    text = f"{' with '.join(names)} stands in for {' with '.join(printed)}"
    return SmokeCell(cell, text if names != printed else "")


def _refine_start(spec: TableSpec, app: str) -> Setting:
    assert spec.start is not None
    stand_ins = read_stand_ins(app)
    found = stand_ins.find_setting(spec.start.data, spec.start.backbone) or Setting()
    return spec.start.refine(replace(found, args=stand_ins.args + found.args))
