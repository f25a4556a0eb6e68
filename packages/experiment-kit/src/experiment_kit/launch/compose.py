"""Old names of `launch.overlays`."""  # shim: issue 16, deleted at the end

from typing import Any

from experiment_kit.launch.overlays import APPS, KINDS, command_line
from experiment_kit.launch.overlays import list_overlays as names
from experiment_kit.launch.overlays import overlay_arguments as arguments

__all__ = ["APPS", "arguments", "command", "names", "of_cell"]


def of_cell(cell: Any, folder: str = "runs") -> list[str]:
    """Return the arguments that make one run of a table."""
    chosen = {kind: getattr(cell, kind) for kind in KINDS}
    extra = (f"--run.folder={folder}", *cell.args, f"--seed_everything={cell.seed}")
    return arguments(cell.app, extra, **chosen)


def command(app: str, subcommand: str, args: Any) -> list[str]:
    """Return the part of a command line after `python`."""
    return ["-m", f"attention_{app}", subcommand, *args]


def efficiency(app: str, args: Any) -> list[str]:
    """Return the command line that measures the cost of a model."""
    return command_line(app, "efficiency", args)


def eigenvalues(app: str, args: Any) -> list[str]:
    """Return the command line that measures the eigenvalues of a model."""
    return command_line(app, "eigenvalues", args)
