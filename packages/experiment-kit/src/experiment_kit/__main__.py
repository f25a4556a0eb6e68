"""`python -m experiment_kit {run,table,compare,list}`: experiments and tables by name."""

from typing import Any

from jsonargparse import auto_cli, set_parsing_settings

from experiment_kit.launch.commands import run, table
from experiment_kit.launch.compare import compare
from experiment_kit.launch.listing import list_all
from experiment_kit.sentences import told


def main() -> None:
    """Run the command line."""
    with told():
        # what has no default may be given by place or by name
        set_parsing_settings(parse_optionals_as_positionals=True)
        commands: Any = {"run": run, "table": table, "compare": compare, "list": list_all}
        auto_cli(commands, as_positional=False, exit_on_error=False)


if __name__ == "__main__":
    main()
