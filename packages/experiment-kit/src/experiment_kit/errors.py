"""User errors: one sentence on standard error and an exit status instead of a traceback."""

import errno
import re
import sys
from argparse import ArgumentError
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

# mistakes outside of the program: no space left, no permission, a file in place of a folder
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}
_UNWRITABLE |= {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOENT, errno.ENAMETOOLONG}
_NO_MEMORY = re.compile(
    "allocate memory|out of memory|start new thread", re.IGNORECASE
)  # of torch's RuntimeError
_LONGEST = 320  # characters of a sentence
EXIT_STATUS = 75  # of a run that a signal ended, EX_TEMPFAIL of sysexits.h: try again later


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
        place = shorten_text(str(error.filename or "the runs folder"), 200)
        _exit(f"cannot use {place}: {error.strerror}", 2)
    except MemoryError as error:
        _exit(f"the memory does not suffice ({error}): take a smaller model, batch or length", 2)
    except RuntimeError as error:
        if not _NO_MEMORY.search(str(error)):
            raise
        reason = shorten_text(str(error), 150)
        _exit(f"the memory does not suffice ({reason}): take a smaller model, batch or length", 2)


def import_library(name: str, package: str = "") -> Any:
    """Import a library of an extra; UserError, with what installs it, where it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(f"{name} is missing: pip install '{package or name}'") from error


def shorten_text(text: str, length: int) -> str:
    """Return a text in one line, without its middle where it is long.

    >>> shorten_text("a sentence of many words", 14)
    'a sent ... words'
    """
    text, half = " ".join(text.split()), length // 2 - 1
    return text if len(text) <= length else f"{text[:half].strip()} ... {text[-half:].strip()}"


def _exit(sentence: str, code: int) -> None:
    if len(sentence) > _LONGEST:  # a name or a line of a file may have any length
        sentence = f"{sentence[: _LONGEST - 105]} ... {sentence[-100:]}"
    print(f"error: {sentence}", file=sys.stderr)
    raise SystemExit(code)


def _strip_worker_traceback(text: str) -> str:
    """Return the last message of a DataLoader worker's error, which contains its traceback."""
    if not re.match(r"Caught \w+ in \w+ worker", text):
        return text
    return " ".join(re.split(r"^[\w.]+: ", text, flags=re.MULTILINE)[-1].split())


# reasons of jsonargparse -> sentences, the most telling first
_REASONS = (
    (r"Option '([^']+)' is not accepted", "there is no option '{}'"),
    (r"Group '(.+?)' does not accept option '(.+?)'", "there is no option '{}.{}'"),
    (r"does not accept option '(.+?)'", "there is no option '{}'"),
    (r"Importing '(.+?)' is not allowed", "a config may not name {}; name a class of this slot"),
    (r"arguments are required: (?:fit\.|validate\.|test\.|predict\.)?(.+?)(?=\. Got|\n|$)",
     "{} is missing"),
    (r"Unexpected import path format: (.+)", "expected options as a mapping, or null, got {}"),
    (r"module '([^']+)' has no attribute '([^']+)'",
     "{}.{} does not exist; name a class by its import path"),
    (r"No module named '(.+?)'", "{} does not exist; name a class by its import path"),
    (r"Expected '(.+?)' to be a .*<class '(.+?)'>", "{} is no class of {}"),
    (r"Import path (\S+) does not correspond to a subclass of (\w+)", "{} is no class of {}"),
    (r"does not correspond to a subclass of (\w+)(?s:.*)Given value: (.+)",
     "{1} is no class of {0}"),
    (r"Expected an instantiatable class, but (\S+) is (abstract|a protocol)",
     "{} is {}; name a class that is derived from it"),
    (r'Unable to load config "(.+?)"', "{} is neither options nor a file of options"),
    (r"Expected an import path or a subclass spec, but got (.+?)(?=\. Got|\n|$)",
     "expected the import path of a class, got {}"),
)  # fmt: skip
# what is said of a value that could also be of another type, or null
_NO_CLASS = (
    (r"Expected a dot import path string: (.*)",
     "{!r} is no import path; name a class by its import path"),
    (r"Not a valid subclass of (\w+)(?s:.*)Given value: (.+)", "expected a class of {}, got {}"),
)  # fmt: skip


def summarize_parser_error(text: str) -> str:
    r"""Return the innermost reason of jsonargparse's nested message, with the full key.

    >>> summarize_parser_error('Parser key "model.filter":\n  Parser key "K": '
    ...                        'Expected a <class \'int\'>. Got value: 1.5')
    'model.filter.K: expected int, got 1.5'
    """
    return shorten_text(_find_reason(text), 300)


def _find_reason(text: str) -> str:
    keys: list[str] = []
    for key in re.findall(r'[Kk]ey "([^"]+)"', text):  # of a file, it is the full key once more
        keys = [key] if f"{key}.".startswith(".".join([*keys, ""])) else [*keys, key]
    subject = f"{'.'.join(keys)}: " if keys else ""
    for pattern, sentence in _REASONS:
        if found := re.search(pattern, text):
            return subject + sentence.format(*found.groups())
    if missing := re.search(r"Requirement '([\w-]+).*' not met", text):
        return f"{subject}the package {missing[1]} is missing: pip install {missing[1]}"
    expected = _find_expected_types(text)
    for pattern, sentence in _NO_CLASS:
        if (found := re.search(pattern, text)) and expected in ("", "null"):
            return subject + sentence.format(*found.groups())
    if raised := re.search(
        r"^ *- (?!a class|a dict|Expected|Not a valid|Parser|Problem|Type|Does not validate)(.+)$",
        text,
        re.MULTILINE,
    ):
        return subject + raised[1]
    if expected:
        return f"{subject}expected {expected}, got {_find_given_value(text)}"
    return subject + re.sub(r'Parser key "[^"]+":', "", text).strip()


def _find_expected_types(text: str) -> str:
    if literal := re.search(r"typing\.Literal\[(.+?)\]", text):
        return f"one of {literal[1]}"
    kinds = re.findall(r"Expected an? <class '(?:\w+\.)*(\w+)'>", text)
    # name null only where the value itself may be null, not an object around it
    named = [kind for kind in kinds if kind != "NoneType" or "NestedArg" not in text]
    return " or ".join(dict.fromkeys("null" if kind == "NoneType" else kind for kind in named))


def _find_given_value(text: str) -> str:
    values = re.findall(
        r"(?:Got|Given) value: (?!Namespace|NestedArg)(.*?)\s*(?:$|\n|\. Got)", text
    )
    given = values[0].rstrip(".") or "''" if values else "something else"
    return {"None": "null", "True": "true", "False": "false"}.get(given, given)
