"""Checks of arguments: TypeError for a wrong type, ValueError for a wrong value, one sentence each.

Each check takes the owner of the arguments (a class, a function or a part of the config), and the
arguments by their names:

>>> check_sizes("Linformer", rank=0)
Traceback (most recent call last):
ValueError: Linformer.rank must be a whole number from 1 to 16777216, got 0
"""

from collections.abc import Callable
from inspect import Parameter, signature
from numbers import Integral, Real
from reprlib import repr as shorten
from typing import Any, get_args

from torch import Tensor, nn

MAX_SIZE = 2**24  # of widths, lengths and ranks: a square matrix of this size is beyond any memory
MAX_ORDER = 1000  # of orders and iterations, each of which takes time in every forward pass
MAX_NUMBER = 3e38  # float32 ends at 3.4e38


def check_sizes(owner: str, /, **values: Any) -> None:
    """Refuse all but whole numbers from 1 to MAX_SIZE, as of channels, heads and tokens."""
    check_ints(owner, 1, MAX_SIZE, **values)


def check_orders(owner: str, /, **values: Any) -> None:
    """Refuse all but whole numbers from 1 to MAX_ORDER, as of orders and iterations."""
    check_ints(owner, 1, MAX_ORDER, **values)


def check_ints(owner: str, low: int, high: int, /, **values: Any) -> None:
    """Refuse all but whole numbers from `low` to `high`; a bool is none."""
    allowed = f"a whole number from {low} to {high}"
    _check_numbers(owner, values, Integral, lambda value: low <= value <= high, allowed)


def check_heads(owner: str, /, dim: Any, num_heads: Any) -> None:
    """Refuse sizes out of range, and a dim that the heads do not divide."""
    check_sizes(owner, dim=dim, num_heads=num_heads)
    if dim % num_heads:
        raise ValueError(f"{owner}.dim must be a multiple of num_heads, got {dim} and {num_heads}")


def check_finite(owner: str, /, **values: Any) -> None:
    """Refuse all but numbers that are finite in float32."""
    _check_numbers(owner, values, Real, lambda value: abs(value) <= MAX_NUMBER, "a finite number")


def check_positive(owner: str, /, **values: Any) -> None:
    """Refuse all but finite numbers above 0."""
    allowed = "a finite number above 0"
    _check_numbers(owner, values, Real, lambda value: 0 < value <= MAX_NUMBER, allowed)


def check_nonnegative(owner: str, /, **values: Any) -> None:
    """Refuse all but finite numbers of at least 0."""
    allowed = "a finite number of at least 0"
    _check_numbers(owner, values, Real, lambda value: 0 <= value <= MAX_NUMBER, allowed)


def check_probabilities(owner: str, /, **values: Any) -> None:
    """Refuse all but numbers from 0 to below 1, as of dropout, which at 1 leaves nothing."""
    allowed = "a number of at least 0 and below 1"
    _check_numbers(owner, values, Real, lambda value: 0 <= value < 1, allowed)


def _check_numbers(
    owner: str, values: dict[str, Any], kind: type, is_allowed: Callable[[Any], bool], allowed: str
) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, kind):
            raise TypeError(f"{owner}.{name} must be {allowed}, got {shorten(value)}")
        if not is_allowed(value):
            raise ValueError(f"{owner}.{name} must be {allowed}, got {shorten(value)}")


def check_bools(owner: str, /, **values: Any) -> None:
    """Refuse all but True and False."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise TypeError(f"{owner}.{name} must be True or False, got {shorten(value)}")


def check_choices(owner: str, /, **choices: tuple[Any, Any]) -> None:
    """Refuse a value, given as (value, Literal), that is none of the Literal's."""
    for name, (value, literal) in choices.items():
        if value not in (allowed := get_args(literal)):
            kind = ValueError if isinstance(value, str) else TypeError
            names = ", ".join(allowed)
            raise kind(f"{owner}.{name} must be one of {names}, got {shorten(value)}")


def check_callables(owner: str, /, **values: Any) -> None:
    """Refuse all but functions and classes, as of factories."""
    for name, value in values.items():
        if not callable(value):
            raise TypeError(f"{owner}.{name} must be callable, got {shorten(value)}")


def check_module(factory: str, made: Any, required: str, optional: str = "") -> Any:
    """Return what a factory made, a module whose forward takes these arguments; refuse all else.

    Filters, kernels and functions of tokens differ in the arguments that they require.

    >>> check_module("filter(num_heads)", nn.Identity(), "A v")
    Traceback (most recent call last):
    TypeError: filter(num_heads) must return a module called with (A, v), got Identity()
    """
    needed = required.split()
    given = [*needed, *optional.split()]
    if not isinstance(made, nn.Module) or not _takes_arguments(made.forward, given, len(needed)):
        raise TypeError(
            f"{factory} must return a module called with ({', '.join(given)}), got {shorten(made)}"
        )
    return made


def _takes_arguments(forward: Callable[..., Any], given: list[str], needed: int) -> bool:
    try:
        parameters = signature(forward).parameters.values()
    except ValueError:  # a compiled forward has no signature
        return True
    if any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in parameters):
        return True
    positional = [p for p in parameters if p.kind is not Parameter.KEYWORD_ONLY]
    positional = [p for p in positional if p.kind is not Parameter.VAR_KEYWORD]
    required = [p for p in positional if p.default is Parameter.empty]
    return len(required) == needed and len(positional) >= len(given)


def check_tensors(owner: str, ndim: int, /, **values: Any) -> None:
    """Refuse all but tensors of at least `ndim` axes."""
    for name, value in values.items():
        allowed = f"{owner}.{name} must be a tensor of at least {ndim} axes"
        if not isinstance(value, Tensor):
            raise TypeError(f"{allowed}, got {shorten(value)}")
        if value.ndim < ndim:
            raise ValueError(f"{allowed}, got the shape {tuple(value.shape)}")
