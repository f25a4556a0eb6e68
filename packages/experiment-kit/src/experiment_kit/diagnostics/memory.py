"""How much memory a step takes, as PyTorch's allocators count it."""

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

MIB = 2**20


def allocated(step: Callable[[], Any], device: str) -> float:
    """MiB of tensors that one run holds at its peak, operands apart, as the allocator counts them.

    What the system reports of a whole model on a CPU depends on how malloc's holes fall.

    >>> allocated(lambda: torch.zeros(2**18), "cpu")
    1.0
    """
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return (torch.cuda.max_memory_allocated() - before) / MIB
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        step()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes = (e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))
    return max(accumulate(changes), default=0) / MIB


def held(tensors: Iterable[Tensor]) -> float:
    """MiB of tensors, shared storage counted once.

    >>> x = torch.zeros(2**18)
    >>> held([x, x[3:]])
    1.0
    """
    storages = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in tensors)}
    return sum(storages.values()) / MIB
