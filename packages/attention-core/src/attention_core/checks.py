"""Checks of arguments: TypeError for a wrong type, ValueError for a wrong value, one sentence each.

Each check takes the owner of the arguments (a class, a function or a part of the config), and the
arguments by their names:

>>> check_sizes("Linformer", rank=0)
Traceback (most recent call last):
ValueError: Linformer.rank must be a whole number from 1 to 16777216, got 0
"""

import reprlib
from collections.abc import Callable, Collection
from functools import partial
from inspect import Parameter, signature
from numbers import Integral, Real
from typing import Any, NoReturn, get_args

import torch
from torch import Tensor, nn

MAX_SIZE = 2**24  # of widths, lengths and ranks: a square matrix of this size is beyond any memory
MAX_ORDER = 1000  # of orders and iterations, each of which takes time in every forward pass
MIN_NUMBER, MAX_NUMBER = 1e-38, 3e38  # such a number and its inverse are finite in float32


def check_sizes(owner: str, /, **values: Any) -> None:
    """Refuse all but whole numbers from 1 to MAX_SIZE, as of channels, heads and tokens."""
    check_ints(owner, 1, MAX_SIZE, **values)


def check_orders(owner: str, /, **values: Any) -> None:
    """Refuse all but whole numbers from 1 to MAX_ORDER, as of orders and iterations."""
    check_ints(owner, 1, MAX_ORDER, **values)


def check_ints(owner: str, low: int, high: int, /, **values: Any) -> None:
    """Refuse all but whole numbers from `low` to `high`; a bool is none."""
    for name, value in values.items():
        is_int = isinstance(value, Integral) and not isinstance(value, bool)
        if not is_int:
            _refuse(TypeError, owner, name, f"a whole number from {low} to {high}", value)
        if not low <= value <= high:
            _refuse(ValueError, owner, name, f"a whole number from {low} to {high}", value)


def check_even(owner: str, /, **values: Any) -> None:
    """Refuse all but even sizes."""
    check_ints(owner, 2, MAX_SIZE, **values)
    for name, value in values.items():
        if value % 2:
            _refuse(ValueError, owner, name, "even", value)


def check_heads(owner: str, /, dim: Any, num_heads: Any) -> None:
    """Refuse sizes out of range, and a dim that the heads do not divide."""
    check_sizes(owner, dim=dim, num_heads=num_heads)
    if dim % num_heads:
        raise ValueError(f"{owner}.dim must be a multiple of num_heads, got {dim} and {num_heads}")


def check_finite(owner: str, /, **values: Any) -> None:
    """Refuse all but numbers that are finite in float32."""
    check_numbers(owner, -MAX_NUMBER, MAX_NUMBER, **values)


def check_positive(owner: str, /, **values: Any) -> None:
    """Refuse all but numbers above 0 that are finite in float32, as are their inverses."""
    check_numbers(owner, MIN_NUMBER, MAX_NUMBER, **values)


def check_nonnegative(owner: str, /, **values: Any) -> None:
    """Refuse all but numbers of at least 0 that are finite in float32."""
    check_numbers(owner, 0, MAX_NUMBER, **values)


def check_probabilities(owner: str, /, **values: Any) -> None:
    """Refuse all but numbers from 0 to below 1, as of dropout, which at 1 leaves nothing."""
    for name, value in values.items():
        check_numbers(owner, 0, 1, **{name: value})
        if value == 1:
            _refuse(ValueError, owner, name, "below 1", value)


def check_numbers(owner: str, low: float, high: float, /, **values: Any) -> None:
    """Refuse all but numbers from `low` to `high`; NaN and a bool are none."""
    for name, value in values.items():
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not is_number:
            _refuse(TypeError, owner, name, f"a number from {low} to {high}", value)
        if not low <= value <= high:
            _refuse(ValueError, owner, name, f"a number from {low} to {high}", value)


def check_bools(owner: str, /, **values: Any) -> None:
    """Refuse all but True and False."""
    for name, value in values.items():
        if not isinstance(value, bool):
            _refuse(TypeError, owner, name, "True or False", value)


def check_optional_bools(owner: str, /, **values: Any) -> None:
    """Refuse all but True, False and None."""
    check_bools(owner, **{name: value for name, value in values.items() if value is not None})


def check_choices(owner: str, /, **choices: tuple[Any, Any]) -> None:
    """Refuse a value, given as (value, Literal), that is none of the Literal's."""
    for name, (value, literal) in choices.items():
        if value not in (allowed := get_args(literal)):
            error = ValueError if isinstance(value, str) else TypeError
            _refuse(error, owner, name, f"one of {', '.join(allowed)}", value)


def check_callables(owner: str, /, **values: Any) -> None:
    """Refuse all but functions and classes, as of factories."""
    for name, value in values.items():
        if not callable(value):
            _refuse(TypeError, owner, name, "callable", value)


def check_optional_callables(owner: str, /, **values: Any) -> None:
    """Refuse all but functions, classes and None."""
    check_callables(owner, **{name: value for name, value in values.items() if value is not None})


def check_models(owner: str, /, **values: Any) -> None:
    """Refuse all but modules."""
    for name, value in values.items():
        if not isinstance(value, nn.Module):
            _refuse(TypeError, owner, name, "an nn.Module", value)


# the arguments that the module of a slot is called with, and how many of them it may require
_CALLS = {"filter": ("A v", {2}), "kernel": ("q k x mask", {2, 3, 4}), "tokens": ("x mask", {1})}


def check_mechanism(slot: str, made: Any) -> Any:
    """Return what the factory of a slot made; refuse all but a module of the slot's kind.

    The kinds differ in their arguments, and a reparameterisation has a method `tie`.

    >>> check_mechanism("filter", nn.Identity())
    Traceback (most recent call last):
    TypeError: filter must make a module that is called with (A, v), got Identity
    """
    is_module = isinstance(made, nn.Module)
    if slot == "reparam":
        fits, kind = is_module and callable(getattr(made, "tie", None)), "has a method tie"
    else:
        args, required = _CALLS[slot]
        fits = is_module and _takes_arguments(made.forward, len(args.split()), required)
        kind = f"is called with ({', '.join(args.split())})"
    if not fits:
        got = type(made).__name__ if is_module else _shorten(made)
        raise TypeError(f"{slot} must make a module that {kind}, got {got}")
    return made


def _takes_arguments(forward: Callable[..., Any], given: int, required: Collection[int]) -> bool:
    try:
        parameters = signature(forward).parameters.values()
    except ValueError:  # a function without a signature, such as a compiled one
        return True
    if any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in parameters):
        return True
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    defaults = [parameter.default for parameter in parameters if parameter.kind in kinds]
    return defaults.count(Parameter.empty) in required and given <= len(defaults)


# the slot of each package of mechanisms, as an argument of `attach`
_SLOTS = {"filters": "make_filter", "kernels": "kernel", "tokens": "tokens", "reparam": "reparam"}


def check_factories(owner: str, /, filter: Any, **factories: Any) -> None:
    """Refuse all but functions and classes, and a class of ours in the slot of another kind.

    >>> from attention_core import AGF, GFSA
    >>> check_factories("attach", filter=AGF)
    Traceback (most recent call last):
    TypeError: attach.make_filter got AGF, which is of another kind: pass kernel=AGF
    >>> check_factories("attach", filter=GFSA(3))
    Traceback (most recent call last):
    TypeError: attach.make_filter must be a class or a function, got a GFSA that is made already
    """
    for name, factory in {"make_filter": filter, **factories}.items():
        if factory is None and name != "make_filter":
            continue
        if isinstance(factory, nn.Module):
            made = type(factory).__name__
            raise TypeError(
                f"{owner}.{name} must be a class or a function, got a {made} that is made already"
            )
        check_callables(owner, **{name: factory})
        made_by = factory
        while isinstance(made_by, partial):
            made_by = made_by.func
        package, _, path = getattr(made_by, "__module__", "").partition(".")
        slot = _SLOTS.get(path.partition(".")[0], name) if package == "attention_core" else name
        if isinstance(made_by, type) and slot != name:
            made = made_by.__name__
            raise TypeError(
                f"{owner}.{name} got {made}, which is of another kind: pass {slot}={made}"
            )


def check_tensors(owner: str, ndim: int, /, **values: Any) -> None:
    """Refuse all but tensors of at least `ndim` axes."""
    for name, value in values.items():
        if not isinstance(value, Tensor):
            _refuse(TypeError, owner, name, f"a tensor of at least {ndim} axes", value)
        if value.ndim < ndim:
            allowed = f"{owner}.{name} must be a tensor of at least {ndim} axes"
            raise ValueError(f"{allowed}, got the shape {tuple(value.shape)}")


def check_tokens(owner: str, x: Any, dim: int, mask: Any = None) -> None:
    """Refuse tokens that are not (B, N, dim), and a mask of theirs that is not boolean (B, N).

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


def _refuse(error: type[Exception], owner: str, name: str, allowed: str, value: Any) -> NoReturn:
    raise error(f"{owner}.{name} must be {allowed}, got {_shorten(value)}")


def _shorten(value: Any) -> str:
    return " ".join(reprlib.repr(value).split())  # one line
