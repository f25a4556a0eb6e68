"""The options that commands share, their checks, and grids of an app's own options."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse.typing import NonNegativeInt
from rich.console import Console

from experiment_kit.app_files import read_settings
from experiment_kit.errors import UserError, convert_user_errors, suggest_name
from experiment_kit.launch import overlays
from experiment_kit.launch.jobs import Places
from experiment_kit.launch.plan import Experiment, plan_configs
from experiment_kit.launch.ray import connect_cluster
from experiment_kit.pages.records import flatten_settings

Grid = dict[str, list[str]]  # options -> the text of each value


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The options on how runs are started.

    Args:
        jobs: runs at a time; 0 is one for each GPU, or for each core without a GPU
        folder: the folder of the runs
        dry_run: list the runs, and train nothing; commands prints a shell command for each
        launcher: where runs are started: local is this machine, ray the machines of a Ray cluster
        address: that of a Ray cluster, such as head:6379; the default is the one of this machine
    """

    jobs: NonNegativeInt = 0
    folder: str = "runs"
    dry_run: bool | Literal["commands"] = False
    launcher: Literal["local", "ray"] = "local"
    address: str = ""

    @cached_property
    def console(self) -> Console:
        """The terminal; standard output is left to the commands of runs."""
        return Console(stderr=self.dry_run == "commands", soft_wrap=True)  # to copy or grep lines

    @cached_property
    def make_places(self) -> Callable[[int], Places]:
        """The function of their number that makes the places of runs, here or on a cluster."""
        if self.launcher == "ray":
            return connect_cluster(self.address)
        if self.address:
            raise UserError(f"--address={self.address} needs --launcher=ray")
        return Places


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions:
    """The experiments of a comparison; an overlay that is not named is the default of app or data.

    Args:
        app: graph, nlp, sequence, speech or vision
        data: a data set, a name in configs/data of the app; by default that of the app
        backbone: a model, a name of backbones.yaml; by default that of the data set
        recipe: optimizer and length of training, a name of recipes.yaml; by default the data set's
        profile: smoke, small or another name of profiles.yaml, which make a run shorter; paper for
            the full one; by default that of the data set
        protocol: where the epoch is chosen: validation, test, or published, as the papers' code
            does; or another name of protocols.yaml
        args: options of the app, which attention-vision fit --help lists, in one text; those with a
            dot, such as --trainer.max_epochs=3, may also be given as they are
        methods: such as plain,gfsa, where plain is the model alone; by default those of the app
        seeds: such as 0,1,2; by default those of the protocol, else [0]
    """

    app: str
    data: str | None = None
    backbone: str | None = None
    recipe: str | None = None
    profile: str | None = None
    protocol: str = "validation"
    args: str = ""
    methods: Sequence[str] | None = None
    seeds: Sequence[int] | None = None

    @cached_property
    def experiments(self) -> list[Experiment]:
        """An experiment of each seed and method, all with the recipe of the last method."""
        check_list("methods", self.methods)
        if "," in (self.recipe or ""):
            raise UserError(f"--recipe={self.recipe}: one recipe trains all methods: name one")
        with convert_user_errors(ValueError, prefix=f"--args={self.args}: "):
            extra = tuple(shlex.split(self.args))
        methods = self.methods or overlays.read_defaults(self.app)["methods"]
        names = {name: getattr(self, name) for name in ("backbone", "recipe", "profile")}
        names |= {"method": methods[-1], "protocol": self.protocol}
        chosen: dict[str, Any] = overlays.choose_overlays(self.app, self.data, **names)
        check_seeds(self.seeds)
        seeds = self.seeds or overlays.choose_seeds(self.app, [0], method=methods[-1], **chosen)
        own = {"app": self.app, "args": extra, **chosen}
        found = [Experiment(method=m, seed=s, **own) for s, m in product(seeds, methods)]
        given = {argument.partition("=")[0].lstrip("-") for argument in extra}
        if "seed_everything" in given.union(*found[0].own_settings if self.seeds is None else ()):
            raise UserError("--args has seed_everything: name seeds by --seeds")
        return found


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(LaunchOptions, ExperimentOptions):
    """The experiments of a comparison, and how their runs are started."""


def check_seeds(seeds: Sequence[int] | None) -> None:
    """Raise UserError unless seeds are distinct and in [0, 2^32), as numpy takes them."""
    check_list("seeds", seeds)
    if wrong := [seed for seed in seeds or () if not 0 <= seed < 2**32]:
        raise UserError(f"--seeds: a seed is 0 to {2**32 - 1}, got {wrong[0]}")


def check_list(option: str, values: Sequence[Any] | None) -> None:
    """Raise UserError for an empty list or a duplicate; None is an option left out."""
    if values is None:
        return
    if not values:
        raise UserError(f"--{option}=[] names none: name at least one, or leave the option out")
    if twice := [value for value in values if values.count(value) > 1]:
        raise UserError(f"--{option} names {twice[0]} twice")


def make_folders(**options: str) -> None:
    """Make the folders that options name, so that a bad path fails before training."""
    for option, folder in options.items():
        if not folder:
            raise UserError(f"--{option}= is empty: name a folder")
        Path(folder).mkdir(parents=True, exist_ok=True)


def read_grid(app: str, text: str) -> Grid:
    """Read `key=value,value` and files or entries of grids.yaml, with spaces between them."""
    grid: Grid = {}
    for item in text.split():
        key, sign, values = item.partition("=")
        with convert_user_errors(yaml.YAMLError, prefix=f"--grid={item}: "):
            if sign:
                is_yaml = set("[{") & set(values)
                found = {key: yaml.safe_load(f"[{values}]") if is_yaml else values.split(",")}
            elif Path(item).is_file():
                found = read_settings(Path(item).resolve())
            else:
                found = overlays.read_overlay(app, "grid", item)
        if both := grid.keys() & found.keys():
            raise UserError(f"--grid has {min(both)} twice: name each option once")
        for name, listed in found.items():
            if not isinstance(listed, list):
                raise UserError(f"{item}: {name} must be a list of values, got {listed!r}")
            texts = (x if isinstance(x, str) else json.dumps(x) for x in listed)
            grid[str(name)] = [*dict.fromkeys(texts)]
    if "seed_everything" in grid:
        raise UserError("--grid has seed_everything: name seeds by --seeds")
    return grid


def expand_grid(experiments: Sequence[Experiment], grid: Grid) -> list[Experiment]:
    """Return an experiment of each point of a grid, made of the options that its method has."""
    own = find_own_options(experiments, grid) if grid else {}
    points = {method: list_points(part) for method, part in own.items()}
    pairs = ((e, point) for e in experiments for point in points.get(e.method, [{}]))
    return [set_options(e, point, grid) if point else e for e, point in pairs]


def list_points(grid: Grid) -> list[dict[str, str]]:
    """Return every combination of the values of a grid."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def find_own_options(experiments: Sequence[Experiment], grid: Grid) -> dict[str, Grid]:
    """Return the part of a grid that each method has; UserError for an option that none has."""
    first = [e for e in experiments if e.seed == experiments[0].seed]
    configs = {e.method: config for e, config in plan_configs(first).items()}
    own = {m: {k: grid[k] for k in grid if find_path(c, k)} for m, c in configs.items()}
    for key in grid:
        if not any(key in part for part in own.values()):
            names = {name for config in configs.values() for name in flatten_settings(config)}
            text = f"--grid: none of {', '.join(own)}"
            raise UserError(f"{text} has the option {key}{suggest_name(key, names)}")
    return own


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


def find_path(config: Any, key: str) -> str:
    """Return the whole key of an option, with `init_args` that it leaves out; else ""."""
    path: list[str] = []
    for name in key.split("."):
        if isinstance(config, dict) and name not in config and "init_args" in config:
            path, config = [*path, "init_args"], config["init_args"]
        if not isinstance(config, dict) or name not in config:
            return ""
        path, config = [*path, name], config[name]
    return ".".join(path)
