"""Checks of arguments: TypeError for a wrong type, ValueError for a wrong value, one sentence each.

Each check takes the owner of the arguments (a class, a function or a part of the config), and the
arguments by their names.
"""

import reprlib
from collections.abc import Callable
from functools import partial
from math import inf, isfinite
from numbers import Integral, Real
from typing import Any, get_args

import torch
from torch import Tensor, nn

# the slots of the mechanisms of each package
_SLOTS = {"filters": "filter", "kernels": "kernel", "tokens": "tokens", "reparam": "reparam"}


def _make_check(
    kind: Any, allowed: str, is_right: Callable[[Any], bool] = lambda value: True
) -> Callable[..., None]:
    """Make a check of the kind of each argument and of its value; no bool is a number."""

    def check(owner: str, /, **values: Any) -> None:
        for name, value in values.items():
            is_kind = isinstance(value, kind) and not isinstance(value, bool)
            if not is_kind or not is_right(value):
                error = ValueError if is_kind else TypeError
                raise error(f"{owner}.{name} must be {allowed}, got {_describe(value)}")

    return check


check_sizes = _make_check(Integral, "a whole number of at least 1", lambda x: x >= 1)
check_even = _make_check(Integral, "an even number of at least 2", lambda x: x > 1 and x % 2 == 0)
check_finite = _make_check(Real, "a finite number", isfinite)
check_positive = _make_check(Real, "a number above 0", lambda x: 0 < x < inf)
check_nonnegative = _make_check(Real, "a number of at least 0", lambda x: 0 <= x < inf)
check_probabilities = _make_check(Real, "a number from 0 to below 1", lambda x: 0 <= x < 1)
check_models = _make_check(nn.Module, "an nn.Module")
check_callables = _make_check(Callable, "callable")


def check_ints(owner: str, low: int, high: float = inf, /, **values: Any) -> None:
    """Check that each value is a whole number from `low` to `high`."""
    text = f"of at least {low}" if high == inf else f"from {low} to {high}"
    _make_check(Integral, f"a whole number {text}", lambda x: low <= x <= high)(owner, **values)


def check_numbers(owner: str, low: float, high: float, /, **values: Any) -> None:
    """Check that each value is a number from `low` to `high`."""
    _make_check(Real, f"a number from {low} to {high}", lambda x: low <= x <= high)(owner, **values)


def check_heads(owner: str, /, dim: Any, num_heads: Any) -> None:
    """Check that both are sizes, and that the heads divide the dim."""
    check_sizes(owner, dim=dim, num_heads=num_heads)
    if dim % num_heads:
        raise ValueError(f"{owner}.dim must be a multiple of num_heads, got {dim} and {num_heads}")


def check_choices(owner: str, /, **choices: tuple[Any, Any]) -> None:
    """Check that each value, given as (value, Literal), is one of the Literal's."""
    for name, (value, literal) in choices.items():
        allowed = get_args(literal)
        check = _make_check(str, f"one of {', '.join(allowed)}", allowed.__contains__)
        check(owner, **{name: value})


def check_tensors(owner: str, ndim: int, /, **values: Any) -> None:
    """Check that each value is a tensor of at least `ndim` axes."""
    check = _make_check(Tensor, f"a tensor of at least {ndim} axes", lambda x: x.ndim >= ndim)
    check(owner, **values)


def check_tokens(owner: str, x: Any, dim: int, mask: Any = None) -> None:
    """Check that tokens are (B, N, dim), and that a mask of theirs is boolean (B, N)."""
    check_tensors(owner, 3, tokens=x)
    if x.is_nested:
        raise ValueError(f"{owner} takes no nested tensor: pad it, and give the mask of its tokens")
    if x.ndim != 3 or x.shape[2] != dim:
        raise ValueError(f"{owner} takes (batch, tokens, {dim}), got the shape {tuple(x.shape)}")
    if mask is None:
        return
    check_tensors(owner, 2, mask=mask)
    if mask.dtype != torch.bool or mask.shape not in (x.shape[:2], (1, x.shape[1])):
        raise ValueError(
            f"{owner} takes a boolean mask {tuple(x.shape[:2])} of its tokens, got the shape "
            f"{tuple(mask.shape)} of {mask.dtype}"
        )


def check_mechanism(slot: str, made: Any) -> Any:
    """Return what the factory of a slot made, if it is a module; a spectrum has a method `tie`."""
    if not isinstance(made, nn.Module) or (slot == "reparam" and not hasattr(made, "tie")):
        kind = "a module that has a method tie" if slot == "reparam" else "a module"
        raise TypeError(f"{slot} must make {kind}, got {_describe(made)}")
    _check_slot(slot, slot, type(made))
    return made


def check_factories(owner: str, /, **factories: Any) -> None:
    """Check factories, the filter's first; no class of ours is in the slot of another kind."""
    first = next(iter(factories))
    for name, factory in factories.items():
        if factory is None and name != first:
            continue
        if isinstance(factory, nn.Module):
            made = type(factory).__name__
            raise TypeError(
                f"{owner}.{name} must be a class or a function, got a {made} that is made already"
            )
        check_callables(owner, **{name: factory})
        made_by = factory.func if isinstance(factory, partial) else factory
        if isinstance(made_by, type):
            _check_slot(f"{owner}.{name}", name, made_by, first)


def _check_slot(owner: str, slot: str, made_by: type, filter_slot: str = "filter") -> None:
    """Refuse a class of ours in another slot than its own."""
    package, *path = made_by.__module__.split(".")
    own = _SLOTS.get(path[0], slot) if package == "attention_core" and path else slot
    own = filter_slot if own == "filter" else own
    if own != slot:
        name = made_by.__name__
        raise TypeError(f"{owner} got {name}, which is of another kind: pass {own}={name}")


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"the shape {tuple(value.shape)}"
    return " ".join(reprlib.repr(value).split())  # one line
