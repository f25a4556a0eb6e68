"""The base of all mechanisms, the arguments that they were made with, and the tokens they mix."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from attention_core.operators import allowed_pairs


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


def find_allowed_tokens(mask: Tensor, owner: str) -> Tensor:
    """Return the tokens (B, N) that a mask allows; ValueError if it depends on the query."""
    pairs = allowed_pairs(mask).reshape((1,) * (4 - mask.ndim) + mask.shape)  # (B, H, N, N)
    if pairs.stride(-2) == 0:
        pairs = pairs[..., -1:, :]
    if pairs.shape[1:3] == (1, 1):
        return pairs[:, 0, 0]
    valid = pairs.flatten(1, 2).any(1)
    # a query that is padding itself may see nothing; a compiler cannot branch on a value
    differ = (pairs != valid[:, None, None]) & pairs.any(-1, keepdim=True)
    if not torch.compiler.is_compiling() and differ.any():
        raise ValueError(
            f"the mask keeps tokens apart that {owner} would mix: it may depend on keys alone, not "
            "on queries"
        )
    return valid
