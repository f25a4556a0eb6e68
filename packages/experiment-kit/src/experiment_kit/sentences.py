"""Errors as a person would say them: one sentence on standard error, and an exit status."""

import errno
import re
import sys
from argparse import ArgumentError
from collections.abc import Iterator
from contextlib import contextmanager

from experiment_kit.errors import UserError

# no space, no right, no such place: mistakes outside of the program
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}
_UNWRITABLE |= {errno.ENOTDIR, errno.EEXIST}


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
        _leave(_own_sentence(str(error)), error.code)
    except ArgumentError as error:
        _leave(one_sentence(str(error)), 2)
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        _leave(f"cannot use {error.filename or 'the runs folder'}: {error.strerror}", 2)


def _own_sentence(text: str) -> str:
    """What an error said in a worker of a data loader, which passes its traceback as its text."""
    if not re.match(r"Caught \w+ in \w+ worker", text):
        return text
    return " ".join(re.split(r"^[\w.]+: ", text, flags=re.MULTILINE)[-1].split())


def _leave(sentence: str, code: int) -> None:
    print(f"error: {sentence}", file=sys.stderr)
    raise SystemExit(code)


def one_sentence(text: str) -> str:
    r"""The innermost reason of a parser's nested message, with the whole key that it is about.

    >>> one_sentence('Parser key "model.filter":\n  Parser key "K": Expected a <class \'int\'>. '
    ...              'Got value: 1.5')
    'model.filter.K: expected int, got 1.5'
    """
    keys = ".".join(re.findall(r'[Kk]ey "([^"]+)"', text))
    subject = f"{keys}: " if keys else ""
    if found := re.search(
        r"Option '([^']+)' is not accepted|Group '(.+?)' does not accept option '(.+?)'", text
    ):
        return f"{subject}there is no option {found[1] or f'{found[2]}.{found[3]}'!r}"
    if found := re.search(r"Unexpected import path format: (.+)", text):
        return f"{subject}expected options as a mapping, or null, got {found[1]}"
    if found := re.search(
        r"module '([^']+)' has no attribute '([^']+)'|No module named '(.+?)'", text
    ):
        name = found[3] or f"{found[1]}.{found[2]}"
        return f"{subject}{name} does not exist; name a class by its import path"
    if raised := re.search(
        r"^ *- (?!Expected|Problem|Type|Does not validate)(.+)$", text, re.MULTILINE
    ):
        return raised[1]
    if expected := _expected(text):
        return f"{subject}expected {expected}, got {_given(text)}"
    return subject + " ".join(re.sub(r'Parser key "[^"]+":', "", text).split())


def _expected(text: str) -> str:
    if literal := re.search(r"typing\.Literal\[(.+?)\]", text):
        return f"one of {literal[1]}"
    kinds = re.findall(r"Expected an? <class '(?:\w+\.)*(\w+)'>", text)
    # null is worth a mention only where the value itself may be null, not an object around it
    named = [kind for kind in kinds if kind != "NoneType" or "NestedArg" not in text]
    return " or ".join(dict.fromkeys("null" if kind == "NoneType" else kind for kind in named))


def _given(text: str) -> str:
    values = re.findall(
        r"(?:Got|Given) value: (?!Namespace|NestedArg)(.+?)\s*(?:$|\n|\. Got)", text
    )
    return values[0].rstrip(".") if values else "something else"
