"""Corrections of jsonargparse: every use of an API that it does not document is in this file."""

from collections.abc import Sequence
from typing import Any

from jsonargparse import _typehints

_sort_subtypes = _typehints.sort_subtypes_for_union


def try_int_before_float() -> None:
    """Let a number that fits int and float be an int, whatever was imported before.

    jsonargparse tries the types of a union as they are written, but typing caches unions without
    their order: `limit_test_batches: 1` would be one batch in one process, and in another 1.0,
    which is all of them. Replaces the private `sort_subtypes_for_union`; upstream has no issue.
    Test: tests/kit/training/test_jsonargparse_patches.py.
    """
    _typehints.sort_subtypes_for_union = _sort_int_before_float


def _sort_int_before_float(subtypes: Sequence[Any], *context: Any) -> list[Any]:
    found = list(_sort_subtypes(subtypes, *context))
    if int in found and float in found:
        first, last = sorted((found.index(int), found.index(float)))
        found[first], found[last] = int, float
    return found
