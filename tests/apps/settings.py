"""The settings that the papers print, compared with the config of every cell of a table.

`tests/apps/<app>/settings/<table>.yaml` has the expected settings of `<table>`. To add a table:

    source: GFSA, Table 17; run_glue.py      # the paper's section or table, or the released file
    common:                                  # for every cell
      max_epochs: 3
      optimizer: AdamW
    columns:                                 # for columns, in their order or by their names
      each: {lr: [2e-5, 1e-5, null]}         # one for each column of the table; null: not printed
      "cola, mrpc": {batch_size: 16}
    rows:                                    # every printed row that can be run, by its name
      bert_base: {}
      "*-gfsa":
        source: GFSA, Table 18               # for this block alone
        filter: GFSA
        each: {K: [4, 2, 3]}
        at: {cola: {w0: -0.01}}              # for columns in these rows
    published:                               # common, columns and rows again: other values under
      common: {seed_everything: 2023}        # the paper's protocol, which is then compared as well
    other:                                   # and those of the other source, by that protocol
      rows: {"*-gfsa": {max_epochs: 5}}
    paper: {protocol: published, source: released, profiles: [paper], seeds: [2023]}  # no option

- A key is the end of a path into the merged config: `K`, `optimizer.init_args.lr`. An error lists
  the paths where several end so. A whole path is always one.
- `start.<key>` is of the run whose weights the cell starts from.
- A class is named by the end of its import path; null stands for null and for no such key.
- Rows and columns are names or patterns, several by commas. What comes later wins: `common`,
  `columns`, `rows`, `at`, and in each the later lines.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatch
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from experiment_kit.app_files import find_config, find_table_specs, list_apps, read_option
from experiment_kit.launch.plan import ConfigPlanner, Experiment, load_app, set_option
from experiment_kit.papers.spec import Cell, TableSpec
from experiment_kit.run import Run

TABLES = {path.stem: path for app in list_apps() for path in find_table_specs(app)}
BLOCKS, OPTIONS = {"common", "columns", "rows"}, {"source", "each", "at"}


Expected = dict[str, tuple[Any, str]]  # the values of a cell by their keys, each with its source


def find_settings(table: str) -> Path:
    app = TABLES[table].parents[1].name.removeprefix("attention_")
    return Path("tests/apps") / app / "settings" / f"{table}.yaml"


def compare_blocks(spec: TableSpec, settings: dict[str, Any]) -> list[str]:
    """Plan every printed cell of a table, and list what its config has other than its settings."""
    settings = dict(settings)
    blocks = {name: settings.pop(name, None) for name in ("published", "other")}
    paper, found = settings.pop("paper", None), describe_paper(spec)
    problems, layers = check_names(spec, settings), [settings]
    if paper != found:
        problems.append(f"the paper's is {paper}, and without an option there is {found}")
    if spec.others and not blocks["other"]:
        problems.append("no block 'other' for the rows of the other source")
    cells = spec.list_cells("paper", "validation")
    if blocks["published"]:  # and each cell by the paper's protocol
        cells = [c for c in cells if c.row == cells[0].row or c.column == cells[0].column]
    problems += compare_cells(cells, spec, layers)
    for name, block in blocks.items():
        if block is not None:
            problems += check_names(spec, block, with_rows=False)
            layers = [*layers, {"source": settings.get("source"), **block}]
            source = spec.other_source if name == "other" else "paper"
            cells = spec.list_cells(source=source)
            printed = (replace(c, row=c.row.removesuffix(f"-{source}")) for c in cells)
            problems += compare_cells(printed, spec, layers)
    return problems


def describe_paper(spec: TableSpec) -> dict[str, Any]:
    experiments = [cell.experiment for cell in spec.list_cells()]
    found = {name: sorted({getattr(e, name) for e in experiments}) for name in ("profile", "seed")}
    profiles, seeds = found.values()
    return {
        "protocol": spec.protocol, "source": spec.source, "profiles": profiles, "seeds": seeds
    }  # fmt: skip


def compare_cells(cells: Iterable[Cell], spec: TableSpec, layers: list[Any]) -> Iterator[str]:
    for cell in {(cell.row, cell.column): cell for cell in reversed([*cells])}.values():
        yield from find_differences(expect_settings(layers, [*spec.columns], cell), cell)


def check_names(spec: TableSpec, settings: Any, with_rows: bool = True) -> list[str]:
    """Find blocks, rows and columns that the table does not have, and rows that are left out."""
    problems = [f"no block {key!r}" for key in settings.keys() - BLOCKS - {"source"}]
    rows, columns = settings.get("rows", {}), settings.get("columns", {})
    named = [part for block in rows.values() for part in (block or {}).get("at", {})]
    for kind, patterns, names in (
        ("row", rows, spec.rows),
        ("column", [*(key for key in columns if key not in OPTIONS), *named], spec.columns),
    ):
        parts = [part.strip() for pattern in patterns for part in pattern.split(",")]
        problems += [
            f"no {kind} {part!r}; there are {', '.join(names)}"
            for part in parts
            if not any(fnmatch(name, part) for name in names)
        ]
    if with_rows:
        if not settings.get("source"):
            problems.append("no source")
        named = [patterns for patterns in rows if patterns != "*"]
        covered = (row for row in spec.rows if any(_matches(p, row) for p in named))
        problems += [f"row {row} is not covered" for row in {*spec.rows} - {*covered}]
    return problems


def _matches(patterns: str, name: str) -> bool:
    return any(fnmatch(name, pattern.strip()) for pattern in patterns.split(","))


def expect_settings(layers: list[Any], columns: list[str], cell: Cell) -> Expected:
    """Return the settings that blocks expect of a cell; what comes later wins."""
    expected: Expected = {}
    for layer in layers:
        for source, block in _list_blocks(layer, cell):
            source = block.get("source", source)
            values = {key: value for key, value in block.items() if key not in OPTIONS}
            for key, row in block.get("each", {}).items():
                if len(row) != len(columns):
                    raise ValueError(f"{cell.table}: {key} has {len(row)} values, not one for each "
                                     f"of {', '.join(columns)}")  # fmt: skip
                if (value := row[columns.index(cell.column)]) is not None:
                    values[key] = value
            expected |= {key: (value, source) for key, value in values.items()}
    return expected


def _list_blocks(layer: Mapping[str, Any], cell: Cell) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the blocks of a cell, the general ones first, each with its source."""
    source = str(layer.get("source"))
    columns = layer.get("columns", {})
    yield source, layer.get("common", {})
    yield source, {key: block for key, block in columns.items() if key in OPTIONS}
    for patterns, block in columns.items():
        if patterns not in OPTIONS and _matches(patterns, cell.column):
            yield source, block
    for patterns, block in layer.get("rows", {}).items():
        if _matches(patterns, cell.row):
            block = block or {}
            yield source, {key: part for key, part in block.items() if key != "at"}
            for part, refinement in block.get("at", {}).items():
                if _matches(part, cell.column):
                    yield block.get("source", source), refinement


def find_differences(expected: Expected, cell: Cell) -> Iterator[str]:
    """Yield a sentence for each value of a cell that is another than the expected one."""
    if not expected:
        yield f"{cell.row}, {cell.column}: nothing is expected"
    own = merge_config(cell.experiment)
    start = merge_config(cell.experiment.start) if cell.experiment.start else {}
    for name, (value, source) in expected.items():
        key, config = name.removeprefix("start."), start if name.startswith("start.") else own
        place = f"{cell.row}, {cell.column} ({cell.experiment.protocol}): {name}"
        paths = find_paths(config, key)
        if len(paths) > 1:
            yield f"{place} is one of {', '.join(paths)}: name it in full"
        found = config[paths[0]] if paths else None
        if len(paths) < 2 and not is_equal(found, value):
            yield f"{place} is {found!r}, not {value!r} as in {source}"


@cache
def load_part_planner(app: str) -> ConfigPlanner:
    planner = ConfigPlanner(load_app(app))
    planner.configs = PartCache(planner.app)
    return planner


@cache
def merge_config(experiment: Experiment, load: Any = load_part_planner) -> dict[str, Any]:
    """Return every value of the config of an experiment by its path, mappings as well."""
    runs = {experiment.start: Run(Path("runs/start"))}  # no setting names it
    return dict(list_values(load(experiment.app).merge_config(experiment.arguments(runs=runs))))


class PartCache(dict[Any, dict[str, Any]]):
    """Configs by their arguments: parsed, or made of the parts of those that were parsed.

    A part, as `model.filter` or `data`, is the same wherever the same arguments set it in the same
    order; an `init_args.<name>` after them is a part of its own.
    """

    def __init__(self, app: Any) -> None:
        self.app, self.paths, self.known = app, {""}, dict[tuple[str, ...], Any]()

    def __setitem__(self, arguments: Any, config: dict[str, Any]) -> None:
        super().__setitem__(arguments, config)
        self.paths = {name_part(k) for k, x in list_values(config) if not (x and type(x) is dict)}
        for key in self.list_settings(arguments):
            self.known[key] = read_option(config, key[0])

    def __contains__(self, arguments: Any) -> bool:
        with suppress(KeyError):  # a part is not known yet
            config: dict[str, Any] = {}
            for key in self.list_settings(arguments):
                set_option(config, key[0], self.known[key])
            self.setdefault(arguments, config)
        return super().__contains__(arguments)

    def list_settings(self, arguments: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Yield the path of each part, and all that sets it."""
        found, single = defaultdict[str, list[str]](list), dict[str, str]()
        for flag, argument in pairwise(["", *arguments]):
            path = argument.removeprefix("--").partition("=")[0]
            if flag == "-c":
                kind = argument.partition("/")[0]  # their order is that of the kinds
                for name, value in list_values(find_config(self.app.package, argument) or {}):
                    found[name_part(name)].append(f"{kind} {name}={value!r}")
            elif ".init_args." in path and "weight_decay" not in path:
                found[name_part(path)] += [path] * (path not in single)
                single[path] = argument
            elif argument != "-c":
                found[name_part(path)].append(argument)
        found["model.weight_decay"] += found["model.optimizer"]  # which sets it too
        for source in self.app.links_from_model:
            found["data"] += found[name_part(source)]
        for path in sorted(self.paths | single.keys()):  # a group before its values
            yield path, *found[name_part(path)], single.get(path, "")


name_part = partial(re.sub, r"^(data|\w+\.\w+)\..*", r"\1")


def list_values(config: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the paths of a config, the inner ones as well, and their values."""
    for key, value in config.items():
        yield f"{parent}{key}", value
        if isinstance(value, dict):
            yield from list_values(value, f"{parent}{key}.")


def find_paths(config: Mapping[str, Any], key: str) -> list[str]:
    """Return the paths that end in a key; one that is the key is alone.

    >>> find_paths({"model": {}, "model.lr": 1, "lr": 2, "data.size": 3}, "size")
    ['data.size']
    >>> find_paths({"model": {}, "model.lr": 1, "lr": 2}, "lr")
    ['lr']
    """
    return [key] if key in config else [path for path in config if path.endswith(f".{key}")]


def is_equal(found: Any, expected: Any) -> bool:
    """Return True for equal values; a class may be named by the end of its import path.

    >>> is_equal({"class_path": "torch.optim.AdamW"}, "AdamW"), is_equal(3.0, 3), is_equal([1], 1)
    (True, True, False)
    """
    if isinstance(found, dict) and isinstance(expected, str):
        return f".{found.get('class_path')}".endswith(f".{expected}")
    if isinstance(found, dict) and isinstance(expected, dict):
        return all(is_equal(found.get(key), value) for key, value in expected.items())
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(is_equal, found, expected))
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    if isinstance(expected, str) and not isinstance(found, str):  # YAML reads 1e-4 as a text
        try:
            return float(expected) == found
        except ValueError:
            return False
    return found == expected
