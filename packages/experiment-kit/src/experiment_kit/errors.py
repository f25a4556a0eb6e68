"""User errors: one sentence on standard error and an exit status instead of a traceback."""

import re
import signal
import sys
from argparse import ArgumentError
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from os.path import isfile
from traceback import walk_tb
from typing import Any

_NO_MEMORY = re.compile("allocate memory|out of memory", re.IGNORECASE)  # as torch says it
# the lines of jsonargparse around the reason of an error
_FRAME = ("Parser key", "Does not validate", "Subtypes:", "Errors:", "Given value", "Check the doc",
          "Problem with", "Expected a path but", "Expected a <class 'NoneType'>",
          "You can update Transformers")  # fmt: skip
OURS = re.compile(r"(attention_(core|graph|nlp|sequence|speech|vision)|experiment_kit)\b")
EXIT_STATUS = 75  # a signal ended the run; EX_TEMPFAIL of sysexits.h: try again later


class UserError(Exception):
    """A mistake outside of the program; its text is one sentence that names the remedy."""

    code = 2  # exit status


class NothingMeasuredError(UserError):
    """A command that ends without a number of its own."""

    code = 1


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Turn a user's mistake into one sentence and exit status 2; let bugs through."""
    try:
        yield
    except (UserError, ArgumentError, OSError, MemoryError, RuntimeError) as error:
        if not (sentence := describe_mistake(error)):
            raise
        # a name or a line of a file may have any length
        print(f"error: {shorten_text(sentence, 400)}", file=sys.stderr)
        raise SystemExit(getattr(error, "code", 2)) from error


def describe_mistake(error: Exception) -> str:
    """Return the sentence about a mistake outside of the program; "" for a bug."""
    text = str(error)
    if isinstance(error, UserError):
        if not re.match(r"Caught \w+ in \w+ worker", text):
            return text
        # a DataLoader's worker raised it: its message stands below its traceback
        return " ".join(re.split(r"^[\w.]+: ", text, flags=re.MULTILINE)[-1].split())
    if isinstance(error, ArgumentError):
        return summarize_parser_error(text)
    if isinstance(error, OSError):
        place = error.filename or "the disk"
        return f"cannot use {place}: {error.strerror}" if error.strerror else ""
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        return f"the memory does not suffice ({text}): take a smaller model, batch or length"
    return ""


@contextmanager
def convert_user_errors(*kinds: type[Exception], prefix: str = "") -> Iterator[None]:
    """Convert errors of some kinds into a UserError of one sentence."""
    try:
        yield
    except kinds as error:
        own = find_own_line(error)
        raise UserError(f"{prefix}{summarize_parser_error(str(error))}{own}") from error


def find_own_line(error: BaseException | None) -> str:
    """Return where in a user's own code an error was raised, to end its sentence; or ""."""
    if error is None:
        return ""
    frames = [*walk_tb(error.__traceback__)]
    # jsonargparse tries the members of a union, and names the first error alone as the cause
    tried = frames[-1][0].f_locals.get("exceptions", ()) if frames else ()
    if own := next(filter(None, map(find_own_line, (error.__cause__, *tried))), ""):
        return own
    for frame, line in reversed(frames):
        root, file = frame.f_globals.get("__name__", "").partition(".")[0], frame.f_code.co_filename
        is_known = OURS.match(root) or root in sys.stdlib_module_names
        if not is_known and "site-packages" not in file and isfile(file):
            return f" ({type(error).__name__} in {file}, line {line})"
    return ""


def import_library(name: str, package: str = "") -> Any:
    """Import a library of an extra; UserError, with what installs it, where it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(f"{name} is missing: pip install '{package or name}'") from error


def suggest_name(name: str, names: Iterable[str]) -> str:
    """Return the names that a misspelled one may mean, in parentheses to end a sentence; or ""."""
    known = {each.lower(): each for each in names}
    close = [known[each] for each in get_close_matches(name.lower(), known)]
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def check_name(name: str, allowed: Iterable[str], kind: str) -> str:
    """Return `name` if it is allowed, else raise a UserError that lists what is allowed."""
    allowed = list(allowed)
    if name in allowed:
        return name
    hint = suggest_name(str(name), allowed)
    raise UserError(f"There is no {kind} named {name!r}{hint}; allowed: {', '.join(allowed)}.")


def shorten_text(text: str, length: int) -> str:
    """Return a text in one line, without its middle where it is long."""
    text, half = " ".join(text.split()), length // 2 - 1
    return text if len(text) <= length else f"{text[:half].strip()} ... {text[-half:].strip()}"


def summarize_parser_error(text: str) -> str:
    """Return the key and the last line of jsonargparse's nested message."""
    if "<unicode string>" in text:  # broken YAML: the reason stands before its place
        return shorten_text(text, 300)
    keys = dict.fromkeys(re.findall(r'Parser key "([^"]+)":', text))
    lines = [line.strip() for line in text.splitlines()]
    told = [x for x in lines if x and x[-1] != ":" and not x.strip("- ").startswith(_FRAME)]
    # a member of a union that says more than its class
    told = [x for x in told if not x.startswith("- Expected a <class")] or told or [text]
    choices = re.findall("'([^']+)'", " ".join(x for x in told if "Literal[" in x))
    reason = re.split(r"\.? Got value: Namespace", told[-1].removeprefix("- "))[0]
    reason = re.sub(r"a typing\.Literal\[.*\]", " or ".join(choices), reason)
    reason = re.split(r'Parser key "[^"]+":|callable class: |WeightsUnpickler error: ', reason)[-1]
    given = re.findall(r"Given value: (?!\[?Namespace|NestedArg)(.+)", text)
    reason += f". Given value: {given[-1]}{suggest_name(given[-1], choices)}" if given else ""
    return shorten_text(": ".join(filter(None, [".".join(keys), reason.strip()])), 300)


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """End on a signal with one line and the exit status by which shells report the signal."""

    def interrupt(number: int, _: Any) -> None:
        raise KeyboardInterrupt(number)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # nohup and the shell, for a command in the background, let signals be ignored
    defaults = (signal.SIG_DFL, signal.default_int_handler)
    heard = [number for number in signals if signal.getsignal(number) in defaults]
    previous = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    except KeyboardInterrupt as error:
        number = signal.Signals(error.args[0] if error.args else signal.SIGINT)
        print(f"stopped by {number.name}: the same command goes on from here", file=sys.stderr)
        raise SystemExit(128 + number) from error
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
