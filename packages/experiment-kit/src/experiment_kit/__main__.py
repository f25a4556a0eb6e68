"""`python -m experiment_kit <command>`: experiments and tables by name, measurements, downloads."""

import sys
from typing import Any

from jsonargparse import auto_cli, set_parsing_settings

from experiment_kit.errors import exit_on_user_error
from experiment_kit.launch.compare import compare
from experiment_kit.launch.execute import run_experiment
from experiment_kit.launch.measure import run_download, run_efficiency, run_eigenvalues
from experiment_kit.papers.listing import list_experiments
from experiment_kit.papers.publish import make_table

COMMANDS: dict[str, Any] = {
    "run": run_experiment,
    "compare": compare,
    "table": make_table,
    "list": list_experiments,
}
# their arguments are those of an app's own command line
MEASUREMENTS = {
    "efficiency": run_efficiency,
    "eigenvalues": run_eigenvalues,
    "download": run_download,
}


def main() -> None:
    """Run the command line."""
    with exit_on_user_error():
        if sys.argv[1:2] and sys.argv[1] in MEASUREMENTS:
            MEASUREMENTS[sys.argv[1]](sys.argv[2:])
            return
        # arguments without a default may be given by position or by name
        set_parsing_settings(parse_optionals_as_positionals=True)
        auto_cli(COMMANDS, as_positional=False, exit_on_error=False)


if __name__ == "__main__":
    main()
