"""Names that a person typed, checked against the names that exist."""

from collections.abc import Iterable
from difflib import get_close_matches

from experiment_kit.errors import UserError


def check(name: str, allowed: Iterable[str], what: str) -> str:
    """Return `name` if it is allowed, else raise a `UserError` that says what is.

    >>> check("heartbeat", ["heartbeat", "pems_sf"], "column")
    'heartbeat'
    >>> check("hartbeat", ["heartbeat", "pems_sf"], "column of agf-table-1")
    Traceback (most recent call last):
    experiment_kit.errors.UserError: There is no column of agf-table-1 named 'hartbeat'
    (did you mean heartbeat?); allowed: heartbeat, pems_sf.
    """
    allowed = list(allowed)
    if name in allowed:
        return name
    close = get_close_matches(str(name), allowed)
    hint = f" (did you mean {' or '.join(close)}?)" if close else ""
    raise UserError(f"There is no {what} named {name!r}{hint}; allowed: {', '.join(allowed)}.")
