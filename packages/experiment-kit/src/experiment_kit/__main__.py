"""`python -m experiment_kit {run,table,list}`: experiments and tables by name."""

from jsonargparse import auto_cli

from experiment_kit.launch.commands import run, table
from experiment_kit.launch.listing import list_all
from experiment_kit.sentences import told


def main() -> None:
    """Run the command line."""
    with told():
        auto_cli({"run": run, "table": table, "list": list_all}, exit_on_error=False)


if __name__ == "__main__":
    main()
