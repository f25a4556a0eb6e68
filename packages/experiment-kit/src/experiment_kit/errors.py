"""User errors: one sentence on standard error and an exit status instead of a traceback."""

import errno
import re
import sys
from argparse import ArgumentError
from collections.abc import Iterator
from contextlib import contextmanager

# mistakes outside of the program: no space left, no permission, a file in place of a folder
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}
_UNWRITABLE |= {errno.ENOTDIR, errno.EEXIST}


class UserError(Exception):
    """A mistake outside of the program; its text is one sentence that names the remedy."""

    code = 2  # exit status


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Turn a user's mistake into one sentence and exit status 2; let bugs through."""
    try:
        yield
    except UserError as error:
        _exit(_strip_worker_traceback(str(error)), error.code)
    except ArgumentError as error:
        _exit(summarize_parser_error(str(error)), 2)
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        _exit(f"cannot use {error.filename or 'the runs folder'}: {error.strerror}", 2)


def _exit(sentence: str, code: int) -> None:
    print(f"error: {sentence}", file=sys.stderr)
    raise SystemExit(code)


def _strip_worker_traceback(text: str) -> str:
    """Return the last message of a DataLoader worker's error, which contains its traceback."""
    if not re.match(r"Caught \w+ in \w+ worker", text):
        return text
    return " ".join(re.split(r"^[\w.]+: ", text, flags=re.MULTILINE)[-1].split())


def summarize_parser_error(text: str) -> str:
    r"""Return the innermost reason of jsonargparse's nested message, with the full key.

    >>> summarize_parser_error('Parser key "model.filter":\n  Parser key "K": '
    ...                        'Expected a <class \'int\'>. Got value: 1.5')
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
    if expected := _find_expected_types(text):
        return f"{subject}expected {expected}, got {_find_given_value(text)}"
    return subject + " ".join(re.sub(r'Parser key "[^"]+":', "", text).split())


def _find_expected_types(text: str) -> str:
    if literal := re.search(r"typing\.Literal\[(.+?)\]", text):
        return f"one of {literal[1]}"
    kinds = re.findall(r"Expected an? <class '(?:\w+\.)*(\w+)'>", text)
    # name null only where the value itself may be null, not an object around it
    named = [kind for kind in kinds if kind != "NoneType" or "NestedArg" not in text]
    return " or ".join(dict.fromkeys("null" if kind == "NoneType" else kind for kind in named))


def _find_given_value(text: str) -> str:
    values = re.findall(
        r"(?:Got|Given) value: (?!Namespace|NestedArg)(.+?)\s*(?:$|\n|\. Got)", text
    )
    return values[0].rstrip(".") if values else "something else"
