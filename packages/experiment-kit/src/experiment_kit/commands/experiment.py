"""The commands on one experiment by the names of its overlays: run it, print its config."""

import os
import sys
from pathlib import Path
from typing import Any, Literal

import yaml

from experiment_kit.errors import UserError
from experiment_kit.launch.options import SingleOptions
from experiment_kit.launch.plan import plan_configs
from experiment_kit.papers.provenance import find_published_run


def run_experiment(
    app: str,
    data: str | None = None,
    backbone: str | None = None,
    action: Literal["fit", "validate", "test", "predict"] = "fit",
    **options: Any,
) -> None:
    """Run one `action` of Lightning's command line on an experiment named by its overlays.

    Options with a dot, as `--model.filter.K=5`, go to the app unchanged.

    Args:
        app: graph, nlp, sequence, speech or vision
        data: a data set, a name in configs/data of the app; by default that of the app
        backbone: a model, a name of backbones.yaml; by default that of the data set
        action: what is done: fit trains and tests
        options: the other overlays, and the seed
    """
    arguments = SingleOptions(
        app=app, data=data, backbone=backbone, **options
    ).experiment.arguments()
    os.execv(sys.executable, [sys.executable, "-m", f"attention_{app}", action, *arguments])


def print_config(
    app: str = "",
    data: str | None = None,
    backbone: str | None = None,
    run: str = "",
    results: str = "docs/results",
    **options: Any,
) -> None:
    """Print the merged config of an experiment named by its overlays, or of a published run.

    Nothing is built or written. A run of the app accepts what is printed: `fit -c FILE`.

    Args:
        app: graph, nlp, sequence, speech or vision
        data: a data set, a name in configs/data of the app; by default that of the app
        backbone: a model, a name of backbones.yaml; by default that of the data set
        run: the hash of a published run, which names its config in place of the overlays
        results: the folder of the published runs
        options: the other overlays, and the seed
    """
    if bool(app) == bool(run):
        raise UserError("name an app and its overlays, or a published run by --run=HASH")
    if run:
        config = find_published_run(run, Path(results))["config"]
    else:
        (config,) = plan_configs(
            [SingleOptions(app=app, data=data, backbone=backbone, **options).experiment]
        ).values()
    print(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), end="")
