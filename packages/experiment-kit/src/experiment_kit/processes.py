"""Processes that end with the one that started them."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Let this process get a signal when its parent ends, on Linux: kill -9 must not leave it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
