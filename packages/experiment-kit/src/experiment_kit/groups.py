"""Which parameters decay."""

from collections import defaultdict
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from torch import nn


def decay_groups(
    model: nn.Module, weight_decay: float, exempt: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """Split the trainable parameters into those that decay and those that do not.

    Not decayed: at most one dimension, a name that ends in ``.bias``, or one that ends in or
    matches (``*``) an entry of ``exempt``. One exempt name suffices for a shared parameter.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    >>> [(group["weight_decay"], len(group["params"])) for group in decay_groups(model, 0.05)]
    [(0.05, 1), (0.0, 3)]
    """
    names: dict[nn.Parameter, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            names[parameter].append(name)
    patterns = (".bias", *exempt)
    kept = {p for p in names if p.ndim <= 1 or _any_match(names[p], patterns)}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in names if p not in kept], "weight_decay": weight_decay},
        {"params": [p for p in names if p in kept], "weight_decay": 0.0},
    ]
    trainable = sorted(id(p) for p in model.parameters() if p.requires_grad)
    assert sorted(id(p) for group in groups for p in group["params"]) == trainable
    return [group for group in groups if group["params"]]


def _any_match(names: Iterable[str], patterns: Iterable[str]) -> bool:
    return any(n.endswith(p) or fnmatchcase(n, p) for p in patterns for n in names)
