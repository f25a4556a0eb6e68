"""Errors as a person would say them: one sentence on standard error, and an exit status."""

import errno
import sys
from argparse import ArgumentError
from collections.abc import Iterator
from contextlib import contextmanager

from experiment_kit.errors import UserError


@contextmanager
def told() -> Iterator[None]:
    """Turn a user's mistake inside into one sentence and exit status 2; let bugs through.

    >>> with told():
    ...     raise UserError("no such table: agf-table-0")
    Traceback (most recent call last):
    SystemExit: 2
    """
    try:
        yield
    except UserError as error:
        _leave(str(error), error.code)
    except ArgumentError as error:
        _leave(one_sentence(str(error)), 2)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        _leave(f"cannot write {error.filename or 'to the runs folder'}: {error.strerror}", 2)


def _leave(sentence: str, code: int) -> None:
    print(f"error: {sentence}", file=sys.stderr)
    raise SystemExit(code)


def one_sentence(text: str) -> str:
    """The innermost reason of a parser's nested message, with the key that it is about."""
    return " ".join(text.split())
