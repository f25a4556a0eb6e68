"""Grids of options: every combination of their values is a run of its own."""

import json
import re
from argparse import ArgumentError
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from experiment_kit.app_files import read_settings
from experiment_kit.cli import AppCLI
from experiment_kit.errors import UserError, summarize_parser_error
from experiment_kit.launch.overlays import read_overlay
from experiment_kit.launch.plan import Experiment, load_app, plan_configs

CLASS = {"class_path", "init_args"}  # keys of a class in a config
Grid = dict[str, list[str]]  # options -> the text of each value


def read_grid(app: str, text: str) -> Grid:
    """Read `key=value,value`, several with spaces between, and files of grids among them.

    A file maps options to lists of values. It is a path, or the name of an entry of
    `configs/grids.yaml` of the app. Raises UserError for an option without values or given twice.
    """
    grid: Grid = {}
    for item in text.split():
        key, sign, values = item.partition("=")
        found = {key: _split_values(item, values)} if sign else _read_file(app, item)
        if both := grid.keys() & found.keys():
            raise UserError(f"--grid has {min(both)} twice: name each option once")
        grid |= found
    for key, texts in grid.items():
        if not re.fullmatch(r"\w+(\.\w+)+", key):
            raise UserError(f"--grid: {key!r} is no option of the app, as model.filter.K=2,3,5")
        if key.startswith("run."):
            raise UserError(f"--grid: {key} cannot change a result; name an option that does")
        if not texts or "" in texts:
            raise UserError(f"--grid: {key} has an empty value: write values as {key}=2,3,5")
        if twice := [value for value in texts if texts.count(value) > 1]:
            raise UserError(f"--grid: {key} names {twice[0]} twice")
    return grid


def _split_values(item: str, values: str) -> list[str]:
    if not set("[{") & set(values):
        return values.split(",")
    try:
        return [*map(_format_value, yaml.safe_load(f"[{values}]"))]
    except yaml.YAMLError as error:
        raise UserError(f"--grid={item}: write values as [a, b],[c] without spaces") from error


def _read_file(app: str, name: str) -> Grid:
    path = Path(name)
    if path.suffix == ".yaml" and not path.is_file():
        raise UserError(f"--grid={name}: there is no such file; write key=value,value or a file")
    grid = read_settings(path.resolve()) if path.is_file() else read_overlay(app, "grid", name)
    for key, values in grid.items():
        if not isinstance(values, list):
            raise UserError(f"{name}: {key} must be a list of values, got {values!r}")
    return {str(key): [*map(_format_value, values)] for key, values in grid.items()}


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def expand_grid(experiments: Sequence[Experiment], grid: Grid) -> list[Experiment]:
    """Return the experiments of every combination of values, each with its label.

    A method takes the options that it has. Raises UserError for one that no method has, and for a
    value that the app's classes refuse.
    """
    if not grid:
        return [*experiments]
    own = find_own_options(experiments, grid)
    points = {m: [*map(dict, product(*([(k, v) for v in values] for k, values in part.items())))]
              for m, part in own.items()}  # fmt: skip
    check_grid(experiments, own)
    return [set_options(e, point, grid) for e in experiments for point in points[e.method]]


def find_own_options(experiments: Sequence[Experiment], grid: Grid) -> dict[str, Grid]:
    """Return the part of a grid that each method has; UserError for an option that none has."""
    first = _list_first_seed(experiments)
    configs = {e.method: config for e, config in plan_configs(first).items()}
    own = {m: {k: grid[k] for k in grid if has_option(c, k)} for m, c in configs.items()}
    for key in grid:
        if not any(key in part for part in own.values()):
            raise UserError(f"--grid: none of {', '.join(own)} has the option {key}; "
                            f"{list_options([*configs.values()], key)}")  # fmt: skip
    return own


def check_grid(experiments: Sequence[Experiment], own: Mapping[str, Grid]) -> None:
    """Check each value once, with the first values of the other options."""
    grid = {key: values for part in own.values() for key, values in part.items()}
    checked = []
    for e in _list_first_seed(experiments):
        first = {key: values[0] for key, values in own[e.method].items()}
        others = [{**first, k: v} for k, values in own[e.method].items() for v in values[1:]]
        checked += [set_options(e, point, grid) for point in (first, *others)]
    check_experiments(checked)


def _list_first_seed(experiments: Sequence[Experiment]) -> list[Experiment]:
    return [e for e in experiments if e.seed == experiments[0].seed]


def set_options(experiment: Experiment, point: Mapping[str, str], grid: Grid) -> Experiment:
    """Return the experiment of a point of a grid, with its label."""
    arguments = (f"--{key}={value}" for key, value in point.items())
    values = (f"{shorten_key(key, grid)}={value}" for key, value in point.items())
    label = " ".join([experiment.method, *values])
    return replace(experiment, args=(*experiment.args, *arguments), label=label)


def shorten_key(key: str, grid: Grid) -> str:
    """Return the last part of an option's key, or the whole key if another one ends alike."""
    name = key.rpartition(".")[2]
    return key if sum(other.rpartition(".")[2] == name for other in grid) > 1 else name


def has_option(config: Mapping[str, Any], key: str) -> bool:
    """Return True if a config has an option; `init_args` may be left out of its key."""
    *parents, name = key.split(".")
    found = _find_part(config, parents)
    return isinstance(found, dict) and (name in found or name in (found.get("init_args") or {}))


def _find_part(config: Any, parents: Sequence[str]) -> Any:
    for parent in parents:
        inner = config.get("init_args") if isinstance(config, dict) else None
        config = {**(inner or {}), **config}.get(parent) if isinstance(config, dict) else None
    return config


def list_options(configs: Sequence[Mapping[str, Any]], key: str) -> str:
    """List, in a sentence, the options near a key that no config has."""
    *parents, _ = key.split(".")
    while not (found := [c for c in (_find_part(c, parents) for c in configs) if c]):
        parents.pop()
    options = [o for c in found for o in {**c, **(c.get("init_args") or {})} if o not in CLASS]
    return f"{'.'.join(parents) or 'it'} has {', '.join(dict.fromkeys(options)) or 'no options'}"


def check_experiments(experiments: Sequence[Experiment]) -> None:
    """Build the model and the data module of each experiment, without reading data.

    Raises UserError, with the method and its values, where one is refused.
    """
    app, *_ = {e.app for e in experiments}
    cli: AppCLI | None = None
    for experiment in experiments:
        arguments = experiment.arguments()
        try:
            if cli is None:
                cli = AppCLI(load_app(app), ["fit", *arguments])
            cli.parse_fit(arguments)
            cli.build_model_and_data(shape_only=True)
        except (UserError, ArgumentError) as error:
            reason = summarize_parser_error(str(error))
            raise UserError(f"--grid: {experiment.name}: {reason}") from error


def select_options(config: Any, keys: Iterable[str]) -> dict[str, Any]:
    """Return the part of a config that has some options, with the init_args that keys leave out.

    >>> select_options({"model": {"class_path": "GFSA", "init_args": {"K": 3}}}, ["model.K"])
    {'model': {'init_args': {'K': 3}}}
    """
    selected: dict[str, Any] = {}
    for key in keys:
        _copy_option(config, selected, key.split("."))
    return selected


def _copy_option(source: Any, target: dict[str, Any], names: Sequence[str]) -> None:
    name, *rest = names if names[0] in source else ("init_args", *names)
    if rest:
        _copy_option(source[name], target.setdefault(name, {}), rest)
    else:
        target[name] = source[name]
