"""Experiments by name: the config and the run of each, by parsing alone; finished runs."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from pydoc import locate
from typing import Any, Literal

import torch
from lightning.pytorch import seed_everything

from experiment_kit.app import AppSpec
from experiment_kit.app_cli import AppCLI
from experiment_kit.app_files import PREFIX, find_app_folder, list_apps, read_option, read_settings
from experiment_kit.errors import UserError, check_name, import_library
from experiment_kit.launch.overlays import KINDS, overlay_arguments, read_overlay
from experiment_kit.parsing import restrict_classes
from experiment_kit.run import Run
from experiment_kit.run_files import load_state, read_config


@dataclass(frozen=True)
class EigenvalueOptions:
    """The validation samples on which eigenvalues are measured, a number or all, and the epoch."""

    samples: int | str = 8
    epoch: Literal["best", "last"] = "best"

    def __post_init__(self) -> None:
        is_count = isinstance(self.samples, int) and self.samples >= 1
        if self.samples != "all" and not is_count:
            raise UserError(f"--samples must be at least 1, or all, got {self.samples}")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One seed of one experiment by the names of its overlays.

    `<source>.json` is the file that is read from its run. `label` names it for readers where the
    method does not suffice. `start` is the experiment from whose run its weights come.
    """

    app: str
    data: str
    backbone: str
    method: str
    recipe: str = ""
    profile: str = ""
    protocol: str = ""
    seed: int = 0
    args: tuple[str, ...] = ()
    source: str = "result"
    label: str = field(default="", compare=False)
    start: "Experiment | None" = None
    eigenvalues: EigenvalueOptions | None = None

    @property
    def name(self) -> str:
        """Its label, by default the method."""
        return self.label or self.method

    @property
    def is_trained(self) -> bool:
        """True where it needs a trained model; the cost of a model does not."""
        return self.source != "efficiency"

    @property
    def own_settings(self) -> list[dict[str, Any]]:
        """The settings in the files that its arguments name by `-c`."""
        files = re.findall(r"(?:^|\0)(?:-c|--config)[=\0]([^\0]+)", "\0".join(self.args))
        return [read_settings(path.resolve()) for path in map(Path, files) if path.is_file()]

    def is_measured_by(self, report: Mapping[str, Any]) -> bool:
        """Return True for a measurement with the options of this experiment, if it has any."""
        return self.eigenvalues is None or report.get("options") == asdict(self.eigenvalues)

    def arguments(
        self, folder: str = "runs", runs: Mapping["Experiment", Run] | None = None
    ) -> list[str]:
        """Return its command line; `runs` has the run that it starts from, else it is planned."""
        weights = []
        if self.start:
            found = (runs or plan_runs([self.start], folder))[self.start]
            weights.append(f"--{load_app(self.app).start_option}={found.folder}")
        own = (f"--run.folder={folder}", *weights, *self.args)
        extra = (*own, f"--seed_everything={self.seed}")
        return overlay_arguments(self.app, extra, **{kind: getattr(self, kind) for kind in KINDS})


def plan_runs(experiments: Iterable[Experiment], folder: str = "runs") -> dict[Experiment, Run]:
    """Find the run of every experiment, and before it that of what it starts from."""
    return {e: run for e, (_, run) in plan_configs_and_runs(experiments, folder).items()}


def plan_configs(experiments: Iterable[Experiment]) -> dict[Experiment, dict[str, Any]]:
    """Merge the config of every experiment, as the process of its run does."""
    return {e: config for e, (config, _) in plan_configs_and_runs(experiments).items()}


def plan_configs_and_runs(
    experiments: Iterable[Experiment], folder: str = "runs"
) -> dict[Experiment, tuple[dict[str, Any], Run]]:
    """Merge the config of every experiment, and find its run."""
    configs: dict[Experiment, dict[str, Any]] = {}
    runs: dict[Experiment, Run] = {}
    for e in (e for experiment in experiments for e in (experiment.start, experiment) if e):
        if e not in runs:
            planner = load_planner(e.app)
            configs[e] = planner.merge_config(e.arguments(folder, runs))
            runs[e] = planner.app.find_run(configs[e])
    return {e: (configs[e], run) for e, run in runs.items()}


@cache
def load_planner(app: str) -> "ConfigPlanner":
    """Return the planner of an app, which keeps what it has parsed."""
    return ConfigPlanner(load_app(app))


class ConfigPlanner:
    """Merges the configs of an app's command lines by one parser; seeds share a parse."""

    def __init__(self, app: AppSpec) -> None:
        self.app = app
        self.cli: AppCLI | None = None
        self.configs: dict[tuple[str, ...], dict[str, Any]] = {}  # by arguments without the seed

    def merge_config(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return the config of the arguments of `fit`; its parts are shared with other configs."""
        seeds = [a for a in arguments if a.startswith("--seed_everything=")]
        others = tuple(a for a in arguments if a not in seeds)
        if others not in self.configs:
            if self.cli is None:
                self.cli = AppCLI(self.app, ["fit", *others])
            else:
                self.cli.parse_fit(others)
            self.configs[others] = self.cli.export_config()
        config = dict(self.configs[others])
        if seeds:
            config["seed_everything"] = seed = int(seeds[-1].partition("=")[2])
            if "seed" in (read_option(config, "data.init_args") or {}):  # linked to it
                set_option(config, "data.init_args.seed", seed)
        return config


def set_option(config: dict[str, Any], option: str, value: Any) -> None:
    """Set the value under a dotted key; what other configs share is copied."""
    *groups, name = option.split(".")
    for group in groups:
        config[group] = {**config.get(group, {})}
        config = config[group]
    config[name] = value


def load_app(name: str) -> AppSpec:
    """Import the description of an app; raises UserError if it is not installed."""
    check_name(name, [name] if find_app_folder(name) else list_apps(), "installed app")
    return import_library(PREFIX + name, f"attention-{name}").APP


def find_data(app: str, data: str) -> Path | str:
    """Return the path of a data set, or the reason why there is none."""
    module, dataset_name = _find_module(app, data)
    try:
        return module.find_data(dataset_name)
    except UserError as error:
        return str(error)


def find_absent_data(experiments: Iterable[Experiment]) -> dict[tuple[str, str], str]:
    """Return the reasons why data sets are absent, by app and name."""
    names = sorted({(e.app, e.data) for e in experiments})
    return {name: place for name in names if isinstance(place := find_data(*name), str)}


def count_samples(app: str, data: str) -> dict[str, int]:
    """Return the sizes of a data set that is here, as far as its data module counts them."""
    module, dataset_name = _find_module(app, data)
    return module.count_samples(dataset_name)


def _find_module(app: str, data: str) -> tuple[Any, str]:
    base, overlay = read_overlay(app, "", "base"), read_overlay(app, "data", data)
    class_path = overlay["data"].get("class_path", base["data"]["class_path"])
    return locate(class_path), overlay["data"]["init_args"]["dataset_name"]


def read_run(folder: Path) -> dict[str, Any]:
    """Return the config of a finished run, and its app; UserError if it has not finished."""
    result, config = Run(folder).read_result(), read_config(folder / "config.yaml")
    if result is None or config is None:
        raise UserError(f"{folder} is the folder of no finished run, or lacks config.yaml")
    if result["app"] not in list_apps():
        raise UserError(f"{folder}/result.json is of {result['app']!r}, which is no app here")
    return {**config, "app": result["app"]}


def load_best_epoch(folder: Path, trust: Sequence[str] | str = (), **options: bool) -> Any:
    """Build the model of a finished run with the weights that were tested, and its data."""
    model, data = build_run(folder, trust, **options)
    path = find_weights(folder)
    load_state(model, path)
    if load := getattr(model, "load_tested_weights", None):  # a mean of epochs
        load(path)
    return model, data


def build_run(folder: Path, trust: Sequence[str] | str = (), strict: bool = False) -> Any:
    """Build the model of a finished run with its first weights, and its data."""
    config, app = folder / "config.yaml", read_run(folder)["app"]
    with restrict_classes(config, trust):
        cli = AppCLI(load_app(app), ["fit", "-c", str(config)])
        seed_everything(cli.settings.seed_everything, workers=True, verbose=False)
        model, data = cli.build_model_and_data()
    cli.check_own_data(Run(folder), lambda: data, strict)
    model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    data.prepare_data()
    return model, data


def find_weights(folder: Path) -> Path:
    """Return the weights that a run's result describes; UserError where there are none."""
    if path := Run(folder).find_test_checkpoint():
        return path
    raise UserError(f"{folder} has no checkpoint: its weights are gone")


def answer_batches(model: Any, loader: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each batch and the output of `predict_step` for it."""
    with torch.no_grad():
        for number, batch in enumerate(loader):
            moved = model.transfer_batch_to_device(batch, model.device, 0)
            yield batch, model.predict_step(moved, number)
