"""The run of an experiment, found by parsing its config and without building a model."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pydoc import locate
from typing import Any

import yaml

from experiment_kit.cli import AppCLI, AppSpec
from experiment_kit.errors import UserError
from experiment_kit.launch.overlays import KINDS, find_overlay, overlay_arguments
from experiment_kit.run import Run


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One seed of one experiment by the names of its overlays.

    `source` names the file that is asked of its run: `<source>.json`.
    """

    app: str
    data: str
    backbone: str
    method: str
    recipe: str = ""
    profile: str = ""
    seed: int = 0
    args: tuple[str, ...] = ()
    source: str = "result"

    @property
    def is_trained(self) -> bool:
        """True where it needs a trained model; the cost of a model does not."""
        return self.source != "efficiency"

    def arguments(self, folder: str = "runs") -> list[str]:
        """Return its command line; its own arguments win over `folder`, its seed over them."""
        extra = (f"--run.folder={folder}", *self.args, f"--seed_everything={self.seed}")
        return overlay_arguments(self.app, extra, **{kind: getattr(self, kind) for kind in KINDS})


def plan_runs(experiments: Iterable[Experiment], folder: str = "runs") -> dict[Experiment, Run]:
    """Find the run of every experiment by parsing its config as the run itself does."""
    arguments = {e: ("fit", *e.arguments(folder)) for e in dict.fromkeys(experiments)}
    runs: dict[tuple[str, ...], Run] = {}  # the sources of one run share it
    clis: dict[str, AppCLI] = {}
    for experiment, args in arguments.items():
        if args in runs:
            continue
        if experiment.app not in clis:
            clis[experiment.app] = AppCLI(load_app(experiment.app), [*args])
        cli = clis[experiment.app]
        cli.config = cli.parser.parse_args([*args])
        runs[args] = cli.find_run()
    return {experiment: runs[args] for experiment, args in arguments.items()}


def load_app(name: str) -> AppSpec:
    """Import the description of an app; raises UserError if it is not installed."""
    try:
        return import_module(f"attention_{name}").APP
    except ModuleNotFoundError as error:
        raise UserError(f"{error}: install the app with `pip install -e apps/{name}`") from error


def find_data(app: str, data: str) -> Path | str:
    """Return the path of a data set, or the reason why there is none."""
    path = find_overlay(app, "data", data)
    base, overlay = (yaml.safe_load(p.read_text()) for p in (find_overlay(app, "", "base"), path))
    class_path = overlay["data"].get("class_path", base["data"]["class_path"])
    try:
        module: Any = locate(class_path)
        return module.find_data(overlay["data"]["init_args"]["dataset_name"])
    except UserError as error:
        return str(error)
