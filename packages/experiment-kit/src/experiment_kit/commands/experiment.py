"""The commands on one experiment by the names of its overlays: run it, print its config."""

import os
import sys
from pathlib import Path
from typing import Any, Literal

import yaml

from experiment_kit.errors import UserError
from experiment_kit.launch.options import check_seeds, split_arguments
from experiment_kit.launch.overlays import choose_overlays, choose_seeds
from experiment_kit.launch.plan import Experiment, plan_configs
from experiment_kit.papers.provenance import find_published_run


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

    Options with a dot, as `--model.filter.K=5`, go to the app unchanged.

    Args:
        app: graph, nlp, sequence, speech or vision
        data: a data set, a name in configs/data of the app; its default is that of the app
        backbone: a model, a name of backbones.yaml; its default is that of the data set
        method: a mechanism, a name of methods.yaml; plain is the model without one
        recipe: optimizer and length of training, a name of recipes.yaml; its default is that
            of the data set
        profile: smoke, small or another name of profiles.yaml, which make a run shorter; paper
            for the full one; its default is that of the data set
        protocol: where the epoch is chosen: validation, test, or published, as the papers' code
            does; or another name of protocols.yaml
        seed: a number from 0 to 4294967295; the default is the first one of the protocol, else 0
        args: options for the app in one text, such as "--trainer.max_epochs=3"; options with a dot
            may also be given as they are
        action: what is done: fit trains and tests
    """
    names = {"backbone": backbone, "recipe": recipe, "profile": profile, "protocol": protocol}
    experiment = name_experiment(app, data, method, seed, args, **names)
    arguments = [action, *experiment.arguments()]
    os.execv(sys.executable, [sys.executable, "-m", f"attention_{app}", *arguments])


def print_config(
    app: str = "",
    data: str | None = None,
    backbone: str | None = None,
    method: str = "plain",
    recipe: str | None = None,
    profile: str | None = None,
    protocol: str = "validation",
    seed: int | None = None,
    args: str = "",
    run: str = "",
    results: str = "docs/results",
) -> None:
    """Print the merged config of an experiment named by its overlays, or of a published run.

    Nothing is built or written. A run of the app accepts what is printed: `fit -c FILE`.

    Args:
        app: graph, nlp, sequence, speech or vision
        data: a data set, a name in configs/data of the app; its default is that of the app
        backbone: a model, a name of backbones.yaml; its default is that of the data set
        method: a mechanism, a name of methods.yaml; plain is the model without one
        recipe: optimizer and length of training, a name of recipes.yaml; its default is that
            of the data set
        profile: smoke, small or another name of profiles.yaml, which make a run shorter; paper
            for the full one; its default is that of the data set
        protocol: where the epoch is chosen: validation, test, or published, as the papers' code
            does; or another name of protocols.yaml
        seed: a number from 0 to 4294967295; the default is the first one of the protocol, else 0
        args: options for the app in one text, such as "--trainer.max_epochs=3"; options with a dot
            may also be given as they are
        run: the hash of a published run, which names its config in place of the overlays
        results: the folder of the published runs
    """
    if bool(app) == bool(run):
        raise UserError("name an app and its overlays, or a published run by --run=HASH")
    if run:
        print_settings(find_published_run(run, Path(results))["config"])
        return
    names = {"backbone": backbone, "recipe": recipe, "profile": profile, "protocol": protocol}
    experiment = name_experiment(app, data, method, seed, args, **names)
    (config,) = plan_configs([experiment]).values()
    print_settings(config)


def print_settings(config: dict[str, Any]) -> None:
    """Print a config as YAML."""
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
