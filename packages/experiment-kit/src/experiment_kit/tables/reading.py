"""`apps/<app>/papers/<paper-table-id>.yaml`: how a table is made, checked against the print."""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import yaml

from experiment_kit.errors import UserError
from experiment_kit.tables.names import check
from experiment_kit.tables.paper import PaperTable, load
from experiment_kit.tables.spec import SOURCES, Reference, Row, Setting, TableSpec

T = TypeVar("T")
S = TypeVar("S", bound=Setting)

KINDS: dict[Any, tuple[Any, str]] = {
    str: (str, "a text"),
    float: (int | float, "a number"),
    int: (int, "a whole number"),
    bool: (bool, "true or false"),
}


def load_spec(path: Path | str) -> TableSpec:
    """Read `<paper-table-id>.yaml` and check every name in it against the printed table.

    What the file says at its top is the default of every cell. A row may be the name of its
    method alone, and columns a list of data sets. Raises a `UserError` if the file is absent, or
    says something that it cannot.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} does not exist: a table needs a file that says how it is made.")
    raw = _mapping(yaml.safe_load(path.read_text(encoding="utf-8")), str(path))
    names = [name for name in _names(TableSpec) if name not in ("table", "default")]
    _check_keys(raw, [*names, *_names(Setting)], str(path))
    own = {name: raw.pop(name) for name in names if name in raw}
    default = Setting(source="result", scale=1.0).refined(_setting(Setting, raw, str(path)))
    parts = {**own, **_nested(own, str(path)), "table": path.stem, "default": default}
    spec = _build(TableSpec, parts, str(path))
    _check_names(spec, load(path.stem), path)
    _check_cells(spec, path)
    return spec


def _nested(own: Mapping[str, Any], path: str) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    if "columns" in own:
        nested["columns"] = _columns(own["columns"], f"{path}, columns")
    for part in ("rows", "extra"):
        rows = _mapping(own.get(part, {}), f"{path}, {part}").items()
        nested[part] = {key: _row(row, f"{path}, {part}.{key}") for key, row in rows}
    for key, row in nested["extra"].items():
        if not row.label:
            raise UserError(f"{path}, extra.{key} lacks label.")
    if "protocols" in own:
        protocols = _mapping(own["protocols"], f"{path}, protocols").items()
        nested["protocols"] = {k: _texts(v, f"{path}, protocols.{k}") for k, v in protocols}
    if "significance" in own:
        where = f"{path}, significance"
        nested["significance"] = _build(Reference, _mapping(own["significance"], where), where)
    return nested


def _columns(value: Any, where: str) -> dict[str, Setting]:
    if isinstance(value, dict):
        return {key: _setting(Setting, part, f"{where}.{key}") for key, part in value.items()}
    return {name: Setting(data=name) for name in _texts(value, where)}


def _row(value: Any, where: str) -> Row:
    return Row(method=value) if isinstance(value, str) else _setting(Row, value, where)


def _setting(kind: type[S], value: Any, where: str) -> S:
    parts = dict(_mapping(value, where))
    if "args" in parts:
        parts["args"] = _texts(parts["args"], f"{where}, args")
    if "at" in parts:
        parts["at"] = _columns(_mapping(parts["at"], f"{where}, at"), f"{where}, at")
    return _build(kind, parts, where)


def _check_names(spec: TableSpec, paper: PaperTable, path: Path) -> None:
    printed = [row.key for row in paper.rows]
    for key in spec.rows:
        check(key, printed, f"row of {paper.id}, which {path} gives a method,")
    for column in spec.columns:
        check(
            column, [c for c in paper.columns if c not in paper.averages], f"column of {paper.id}"
        )
    for key, row in spec.made.items():
        _check_keys(row.at, spec.columns, f"{path}, {key}, at")
    if clash := sorted({*spec.extra} & {*printed}):
        raise UserError(f"{path}, extra: {', '.join(clash)} is a row of {paper.id}; use rows.")
    if spec.significance:
        load(spec.significance.table)
        check(spec.significance.row, printed, f"row of {paper.id} to test against")


def _check_cells(spec: TableSpec, path: Path) -> None:
    for row, column in product(spec.made, spec.columns):
        setting = spec.setting(row, column)
        check(setting.source, SOURCES, f"source in {path}")
        for name in ("data", "backbone", "method", "metric"):
            if not getattr(setting, name):
                raise UserError(f"{path} says no {name} for row {row}, column {column}.")


def _build(kind: type[T], values: dict[str, Any], where: str) -> T:
    allowed = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    _check_keys(values, allowed, where)
    needed = (n for n, f in allowed.items() if f.default is f.default_factory is MISSING)
    if missing := [name for name in needed if name not in values]:
        raise UserError(f"{where} lacks {', '.join(missing)}.")
    for name, value in values.items():
        accepted, kind_name = KINDS.get(allowed[name].type, (object, ""))
        if not isinstance(value, accepted):
            raise UserError(f"{where}, {name}, must be {kind_name}, and is {value!r}.")
    return kind(**values)


def _names(kind: Any) -> list[str]:
    return [f.name for f in fields(kind)]


def _check_keys(names: Iterable[str], allowed: Iterable[str], where: str) -> None:
    for name in names:
        check(name, allowed, f"key in {where}")


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where} must map names to values, and is {value!r}.")
    return value


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(f"{where} must be a list of texts, and is {value!r}.")
    return tuple(value)
