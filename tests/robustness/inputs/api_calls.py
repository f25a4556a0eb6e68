"""Wrong calls of attention_core: the table of its own tests."""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from attention_core import SelfAttention

from tests.core.test_refusals import CASES, REQUIRED, SHAPES, SLOTS
from tests.robustness.inputs.case import Case

KIND = "API call"


def list_cases() -> Iterator[Case]:
    for made, argument, value, _ in CASES:
        name = f"{made.__name__}({argument}={str(value)[:30]!r})"
        yield make_case(name, partial(build, made, argument, value), argument)
    for slot, factories in SLOTS.items():
        for number, factory in enumerate(factories):
            run = partial(SelfAttention, 12, 3, **{slot: factory})
            yield make_case(f"SelfAttention({slot}=<wrong factory {number}>)", run, slot)
    for run, _, fragment in SHAPES:
        yield make_case(f"a call that is refused with {fragment!r}", run, re.escape(fragment))


def make_case(name: str, run: Callable[[], object], mentions: str) -> Case:
    return Case(KIND, "core", name, partial(print_refusal, run), mentions)


def build(made: Callable[..., Any], argument: str, value: Any) -> None:
    parameters = inspect.signature(made).parameters.values()
    needed = {p.name: REQUIRED[p.name] for p in parameters
              if p.default is p.empty and p.name in REQUIRED}  # fmt: skip
    made(**needed | {argument: value})


def print_refusal(run: Callable[[], object]) -> None:
    """Call, and end a refusal as a command would."""
    try:
        run()
    except (TypeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
