"""The base of all mechanisms, and the arguments that they were made with."""

import inspect
from typing import Any

from torch import Tensor, nn


class Mechanism(nn.Module):
    """A module that shows its arguments."""

    def extra_repr(self) -> str:
        """Return what `print(model)` shows."""
        known = {k: v for k, v in find_arguments(self).items() if v is not inspect.Parameter.empty}
        return ", ".join(f"{name}={value}" for name, value in known.items())


def find_arguments(part: nn.Module, skipped: int = 0) -> dict[str, Any]:
    """Return the arguments of a part's `__init__`, but the first `skipped`; empty if not stored."""
    names = list(inspect.signature(type(part).__init__).parameters)[1 + skipped :]
    values = {name: getattr(part, name, inspect.Parameter.empty) for name in names}
    stored = {k: v for k, v in values.items() if not isinstance(v, Tensor | nn.Module)}
    return stored | getattr(part, "init_args", {})
