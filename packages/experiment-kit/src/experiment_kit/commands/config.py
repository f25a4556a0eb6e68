"""The command that prints the config of an experiment."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from experiment_kit.errors import UserError
from experiment_kit.launch.options import ComparisonOptions
from experiment_kit.launch.plan import plan_configs
from experiment_kit.papers.provenance import find_published_run


def print_config(
    app: str = "", run: str = "", results: str = "docs/results", **options: Any
) -> None:
    """Print the merged config of an experiment named by its overlays, or of a published run.

    Nothing is built or written. A run of the app accepts what is printed: `fit -c FILE`.

    Args:
        app: graph, nlp, sequence, speech or vision
        run: the hash of a published run, which names its config in place of the overlays
        results: the folder of the published runs
        options: the overlays, the methods and the seeds; the first one counts
    """
    if bool(app) == bool(run):
        raise UserError("name an app and its overlays, or a published run by --run=HASH")
    if run:
        config = find_published_run(run, Path(results))["config"]
    else:
        chosen = ComparisonOptions(app=app, **options)
        chosen = replace(chosen, methods=chosen.methods or ["plain"])
        (config,) = plan_configs(chosen.experiments[:1]).values()
        decays = config["model"], config["model"]["optimizer"]["init_args"]
        if decays[0].get("weight_decay") != decays[1].get("weight_decay"):
            decays[1].pop("weight_decay", None)  # a default, which parameter groups replace
    print(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), end="")
