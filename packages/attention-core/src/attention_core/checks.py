"""Checks of arguments: TypeError for a wrong type, ValueError for a wrong value, one sentence each.

Each check takes the owner of the arguments (a class, a function or a part of the config), and the
arguments by their names:

>>> check_sizes("Linformer", rank=0)
Traceback (most recent call last):
ValueError: Linformer.rank must be a whole number of at least 1, got 0
"""

import reprlib
from collections.abc import Callable
from functools import partial
from math import inf, nextafter
from numbers import Integral, Real
from typing import Any, get_args

import torch
from torch import Tensor, nn

# the slots of the mechanisms of each package
_SLOTS = {"filters": "filter", "kernels": "kernel", "tokens": "tokens", "reparam": "reparam"}


def check_sizes(owner: str, /, **values: Any) -> None:
    """Check that each value is a whole number of at least 1."""
    check_ints(owner, 1, **values)


def check_ints(owner: str, low: int, high: float = inf, /, **values: Any) -> None:
    """Check that each value is a whole number from `low` to `high`, and no bool."""
    text = f"of at least {low}" if high == inf else f"from {low} to {high}"
    _check_range(owner, Integral, f"a whole number {text}", low, high, values)


def check_even(owner: str, /, **values: Any) -> None:
    """Check that each value is an even size."""
    check_ints(owner, 2, **values)
    for name, value in values.items():
        if value % 2:
            raise make_error(owner, name, "even", value)


def check_heads(owner: str, /, dim: Any, num_heads: Any) -> None:
    """Check that both are sizes, and that the heads divide the dim."""
    check_sizes(owner, dim=dim, num_heads=num_heads)
    if dim % num_heads:
        raise ValueError(f"{owner}.dim must be a multiple of num_heads, got {dim} and {num_heads}")


def check_finite(owner: str, /, **values: Any) -> None:
    """Check that each value is a number, and neither NaN nor infinite."""
    _check_range(owner, Real, "a finite number", nextafter(-inf, 0), nextafter(inf, 0), values)


def check_positive(owner: str, /, **values: Any) -> None:
    """Check that each value is a finite number above 0."""
    _check_range(owner, Real, "a number above 0", nextafter(0, 1), nextafter(inf, 0), values)


def check_nonnegative(owner: str, /, **values: Any) -> None:
    """Check that each value is a finite number of at least 0."""
    _check_range(owner, Real, "a number of at least 0", 0, nextafter(inf, 0), values)


def check_numbers(owner: str, low: float, high: float, /, **values: Any) -> None:
    """Check that each value is a number from `low` to `high`."""
    _check_range(owner, Real, f"a number from {low} to {high}", low, high, values)


def check_probabilities(owner: str, /, **values: Any) -> None:
    """Check that each value is a number from 0 to below 1, as dropout of 1 leaves nothing."""
    check_numbers(owner, 0, 1, **values)
    for name, value in values.items():
        if value == 1:
            raise make_error(owner, name, "below 1", value)


def check_models(owner: str, /, **values: Any) -> None:
    """Check that each value is a module."""
    _check_kind(owner, nn.Module, "an nn.Module", values)


def check_callables(owner: str, /, **values: Any) -> None:
    """Check that each value is a function or a class."""
    _check_kind(owner, Callable, "callable", values)


def check_choices(owner: str, /, **choices: tuple[Any, Any]) -> None:
    """Check that each value, given as (value, Literal), is one of the Literal's."""
    for name, (value, literal) in choices.items():
        if value not in (allowed := get_args(literal)):
            error = ValueError if isinstance(value, str) else TypeError
            raise make_error(owner, name, f"one of {', '.join(allowed)}", value, error)


def check_tensors(owner: str, ndim: int, /, **values: Any) -> None:
    """Check that each value is a tensor of at least `ndim` axes."""
    allowed = f"a tensor of at least {ndim} axes"
    _check_kind(owner, Tensor, allowed, values)
    for name, value in values.items():
        if value.ndim < ndim:
            shape = tuple(value.shape)
            raise ValueError(f"{owner}.{name} must be {allowed}, got the shape {shape}")


def check_tokens(owner: str, x: Any, dim: int, mask: Any = None) -> None:
    """Check that tokens are (B, N, dim), and that a mask of theirs is boolean (B, N).

    >>> check_tokens("FeatScale", torch.zeros(2, 5, 3), 4)
    Traceback (most recent call last):
    ValueError: FeatScale takes tokens (batch, tokens, 4), got the shape (2, 5, 3)
    """
    check_tensors(owner, 3, tokens=x)
    if x.ndim != 3 or x.shape[2] != dim:
        raise ValueError(
            f"{owner} takes tokens (batch, tokens, {dim}), got the shape {tuple(x.shape)}"
        )
    if mask is None:
        return
    check_tensors(owner, 2, mask=mask)
    if mask.ndim != 2 or mask.shape[1] != x.shape[1] or mask.dtype != torch.bool:
        raise ValueError(
            f"{owner} takes a boolean mask (batch, {x.shape[1]}) of its tokens, got the shape "
            f"{tuple(mask.shape)} of {mask.dtype}"
        )


def check_mechanism(slot: str, made: Any) -> Any:
    """Return what the factory of a slot made, if it is a module; a spectrum has a method `tie`.

    >>> check_mechanism("filter", None)
    Traceback (most recent call last):
    TypeError: filter must make a module, got None
    """
    if not isinstance(made, nn.Module) or (slot == "reparam" and not hasattr(made, "tie")):
        kind = "a module that has a method tie" if slot == "reparam" else "a module"
        raise TypeError(f"{slot} must make {kind}, got {_shorten(made)}")
    own = _find_slot(type(made)) or slot
    if own != slot:
        name = type(made).__name__
        raise TypeError(f"{slot} got {name}, which is of another kind: pass {own}={name}")
    return made


def check_factories(owner: str, /, **factories: Any) -> None:
    """Check that factories are functions or classes, and no class of ours is in another's slot.

    The first one makes the filter.

    >>> from attention_core import AGF, GFSA
    >>> check_factories("attach", make_filter=AGF, kernel=None)
    Traceback (most recent call last):
    TypeError: attach.make_filter got AGF, which is of another kind: pass kernel=AGF
    """
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
        slot = _find_slot(made_by) if isinstance(made_by, type) else None
        slot = first if slot == "filter" else slot or name
        if slot != name:
            made = made_by.__name__
            raise TypeError(
                f"{owner}.{name} got {made}, which is of another kind: pass {slot}={made}"
            )


def _find_slot(made_by: type) -> str | None:
    """Return the slot that takes a class of ours, None for any other class."""
    package, *path = made_by.__module__.split(".")
    return _SLOTS.get(path[0]) if package == "attention_core" and path else None


def make_error(
    owner: str, name: str, allowed: str, value: Any, error: type[Exception] = ValueError
) -> Exception:
    """Make the error of an argument, which says what is allowed and what was given."""
    return error(f"{owner}.{name} must be {allowed}, got {_shorten(value)}")


def _check_kind(owner: str, kind: Any, allowed: str, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if not isinstance(value, kind):
            raise make_error(owner, name, allowed, value, TypeError)


def _check_range(
    owner: str, kind: type, allowed: str, low: float, high: float, values: dict[str, Any]
) -> None:
    for name, value in values.items():
        is_kind = isinstance(value, kind) and not isinstance(value, bool)
        if not is_kind or not low <= value <= high:
            raise make_error(owner, name, allowed, value, ValueError if is_kind else TypeError)


def _shorten(value: Any) -> str:
    return " ".join(reprlib.repr(value).split())  # one line
