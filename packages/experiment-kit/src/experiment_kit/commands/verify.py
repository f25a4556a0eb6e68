"""The command that recomputes the metrics of a finished run from its checkpoint."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from experiment_kit.app_cli import AppCLI
from experiment_kit.cli import execute_subcommand
from experiment_kit.errors import UserError
from experiment_kit.launch.plan import find_weights, load_app, read_run
from experiment_kit.pages.tables import PageTable, print_page_table
from experiment_kit.parsing import restrict_classes
from experiment_kit.run import Run

TOLERANCE = 1e-4  # relative: rounding differs between machines
_SCORED = re.compile(r"test/(?!(\w+_)?rtf|seconds)")  # scores of the best epoch, no times


def verify_run(run: str, trust: list[str] | str = "") -> None:
    """Test the checkpoint of a finished run again, and compare the metrics with its result.

    A result that was edited, a config that is not the one that was run, and a metric that differs
    by more than 0.01 % are refused. Metrics of training, times and those of the last epoch
    are not recomputed.

    Args:
        run: the folder of the run
        trust: classes, as package.Class, that the config of the run may name besides ours
    """
    folder, path = Path(run), Path(run, "config.yaml")
    config = read_run(folder)
    with restrict_classes(path, trust):
        app = load_app(config["app"])
    expected, found = Run(folder.resolve()).hash, app.find_run(config).hash
    if expected != found:
        text = f"{path} was changed after the run, or names a file that was: it"
        raise UserError(f"{text} has the hash {found}, and the folder {expected}")
    metrics = (Run(folder).read_result() or {})["metrics"]
    written = {name: value for name, value in metrics.items() if _SCORED.match(name)}
    if not written:
        raise UserError(f"{folder}/result.json has no metric that a test recomputes")
    arguments = ["test", "-c", str(path), f"--ckpt_path={find_weights(folder)}"]
    off = ["enable_progress_bar=false", "logger=false", "profiler=null"]  # it writes elsewhere, too
    off += "devices=1", "num_nodes=1", "strategy=auto"  # the parts of several repeat samples
    arguments += [f"--trainer.{option}" for option in off]
    with restrict_classes(path, trust):
        trainer: Any = execute_subcommand(AppCLI(app, arguments))
    measured = {name: value.item() for name, value in trainer.callback_metrics.items()}
    pairs = {name: (value, measured.get(name, np.nan)) for name, value in written.items()}
    rows = [[name, *(f"{value:.6g}" for value in pair)] for name, pair in pairs.items()]
    print_page_table(PageTable(str(folder), ["metric", "written", "recomputed"], rows), Console())
    same = {name for name, p in pairs.items() if np.isclose(*p, TOLERANCE, 0, equal_nan=True)}
    if wrong := sorted(pairs.keys() - (same & measured.keys())):
        raise UserError(
            f"{folder}/result.json is not what its checkpoint scores: {', '.join(wrong)}; another "
            "version of the code or of the data, or a replaced checkpoint, gives other numbers"
        )
    print(f"verified {folder}: {len(written)} metrics, the config and the digest agree")
