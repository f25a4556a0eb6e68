"""Old names of `experiment_kit.run`."""  # shim: issue 16, deleted at the end

from experiment_kit.run import Run as Run
from experiment_kit.run import RunName as Labels
from experiment_kit.run import config_hash as fingerprint
from experiment_kit.run import describe_environment as environment
from experiment_kit.run import is_readable_checkpoint as is_whole
from experiment_kit.run import parse_step as checkpoint_step
from experiment_kit.run import write_atomically as write_atomically

__all__ = [
    "Labels", "Run", "checkpoint_step", "environment", "fingerprint", "is_whole",
    "write_atomically",
]  # fmt: skip
