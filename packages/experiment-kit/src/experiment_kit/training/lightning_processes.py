"""The processes of a run, one a device, which Lightning starts without an interface to them."""

import signal

from lightning.pytorch import Trainer
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from lightning_utilities.core.rank_zero import rank_zero_only

from experiment_kit.errors import UserError
from experiment_kit.processes import end_with_parent


def is_first_process() -> bool:
    """Return True in the process of rank 0, also before there is a trainer."""
    return getattr(rank_zero_only, "rank", 0) == 0


def end_with_first_process() -> None:
    """Let a process that Lightning started for another device end with that of rank 0, at once.

    It waits for rank 0 in collectives, which see no signal, and writes nothing.
    Upstream starts it without that: `_SubprocessScriptLauncher._call_children_scripts`.
    Test: tests/kit/launch/test_devices.py, test_a_run_whose_process_is_killed_is_tried_again.
    """
    if not is_first_process():
        end_with_parent(signal.SIGKILL)


def check_launcher(trainer: Trainer) -> None:
    """Refuse a strategy that forks a process for each device within `fit`.

    The scores and times of callbacks stay in these processes, and a test after training hangs.
    Source: `_MultiProcessingLauncher`, of ddp_spawn, ddp_fork and ddp_notebook.
    Test: tests/kit/launch/test_devices.py, test_a_strategy_that_forks_is_one_sentence.
    """
    if isinstance(trainer.strategy.launcher, _MultiProcessingLauncher):
        raise UserError(
            "trainer.strategy: processes that are forked within a run do not return its scores:"
            " take ddp, or ModelParallelStrategy"
        )
