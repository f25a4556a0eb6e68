"""The commands on one experiment by the names of its overlays: run it, print its config."""

import os
import sys
from typing import Any, Literal

import yaml

from experiment_kit.launch.options import check_seeds, split_arguments
from experiment_kit.launch.overlays import choose_overlays, choose_seeds
from experiment_kit.launch.plan import Experiment, plan_configs


def run_experiment(
    app: str,
    data: str | None = None,
    backbone: str | None = None,
    method: str = "plain",
    recipe: str | None = None,
    profile: str | None = None,
    protocol: str = "validation",
    seed: int | None = None,
    args: str = "",
    action: Literal["fit", "validate", "test", "predict"] = "fit",
) -> None:
    """Run one `action` of Lightning's command line on an experiment named by its overlays.

    Overlays that are not named are the defaults of the data set; an empty profile is the paper's.
    ARGS, and options with a dot as `--model.filter.K=5`, go to the app unchanged.
    """
    names = {"backbone": backbone, "recipe": recipe, "profile": profile, "protocol": protocol}
    experiment = name_experiment(app, data, method, seed, args, **names)
    arguments = [action, *experiment.arguments()]
    os.execv(sys.executable, [sys.executable, "-m", f"attention_{app}", *arguments])


def print_config(
    app: str,
    data: str | None = None,
    backbone: str | None = None,
    method: str = "plain",
    recipe: str | None = None,
    profile: str | None = None,
    protocol: str = "validation",
    seed: int | None = None,
    args: str = "",
) -> None:
    """Print the merged config of an experiment named by its overlays; build and write nothing.

    The names are those of `run`. A run of the app accepts what is printed: `fit -c FILE`.
    """
    names = {"backbone": backbone, "recipe": recipe, "profile": profile, "protocol": protocol}
    experiment = name_experiment(app, data, method, seed, args, **names)
    (config,) = plan_configs([experiment]).values()
    print(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), end="")


def name_experiment(
    app: str, data: str | None, method: str, seed: int | None, args: str, **names: str | None
) -> Experiment:
    """Return the experiment of one seed, by default the first one of its protocol."""
    chosen: dict[str, Any] = choose_overlays(app, data, method=method, **names)
    if seed is None:
        seed = choose_seeds(app, [0], method=method, **chosen)[0]
    check_seeds([seed])
    return Experiment(app=app, method=method, seed=seed, args=split_arguments(args), **chosen)
