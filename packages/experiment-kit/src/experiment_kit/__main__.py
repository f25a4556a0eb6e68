"""`python -m experiment_kit <command>`: experiments and tables by name, measurements, downloads."""

import sys
from typing import Any

from jsonargparse import auto_cli

from experiment_kit.cli import describe_version
from experiment_kit.commands.compare import compare
from experiment_kit.commands.diagnose import diagnose_model
from experiment_kit.commands.disagreements import list_disagreements
from experiment_kit.commands.experiment import print_config, run_experiment
from experiment_kit.commands.figure import make_figure, make_figures
from experiment_kit.commands.list import list_experiments
from experiment_kit.commands.measure import run_efficiency, run_eigenvalues
from experiment_kit.commands.predict import predict_files
from experiment_kit.commands.reproduce import reproduce
from experiment_kit.commands.search import search
from experiment_kit.commands.table import make_table
from experiment_kit.commands.verify import verify_run
from experiment_kit.errors import exit_on_user_error
from experiment_kit.launch.execute import exit_on_signal
from experiment_kit.launch.obtain import obtain_data, obtain_weights
from experiment_kit.launch.options import name_arguments
from experiment_kit.papers.cost import plan_tables
from experiment_kit.papers.index import make_index

COMMANDS: dict[str, Any] = {
    "run": run_experiment,
    "config": print_config,
    "compare": compare,
    "search": search,
    "disagreements": list_disagreements,
    "predict": predict_files,
    "verify": verify_run,
    "diagnose": diagnose_model,
    "table": make_table,
    "figure": make_figure,
    "figures": make_figures,
    "plan": plan_tables,
    "index": make_index,
    "reproduce": reproduce,
    "list": list_experiments,
    "data": obtain_data,
    "weights": obtain_weights,
}
# their arguments are those of an app's own command line
MEASUREMENTS = {
    "efficiency": run_efficiency,
    "eigenvalues": run_eigenvalues,
}


def main() -> None:
    """Run the command line."""
    command, arguments = (sys.argv[1:2] or ["--help"])[0], sys.argv[2:]
    if command == "--version":
        print(describe_version("experiment_kit"))
        return
    with exit_on_user_error(), exit_on_signal():
        if command in MEASUREMENTS:
            MEASUREMENTS[command](arguments)
            return
        options: dict[str, Any] = {"as_positional": False, "exit_on_error": False}
        if command not in COMMANDS:  # --help, or a mistake
            auto_cli(COMMANDS, [command], **options)
        arguments = name_arguments(COMMANDS[command], arguments)
        # by itself: the parser of all commands has no room for one named config
        auto_cli(COMMANDS[command], arguments, prog=f"experiment_kit {command}", **options)


if __name__ == "__main__":
    main()
