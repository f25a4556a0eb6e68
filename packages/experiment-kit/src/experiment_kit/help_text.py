"""Format `--help` of an app: one or two lines an option, and only its own classes."""

import re
import textwrap
from argparse import Action
from typing import Any

from jsonargparse import DefaultHelpFormatter

_CLASSES = re.compile(r",?\s*known subclasses: ([\w., ]+)")
_TYPE = re.compile(r"type: .*?(?=, default: |, known subclasses: |\)$)", re.DOTALL)
_SENTENCE = re.compile(r"(?<=[a-z)`'\"])\.\s")
# packages whose classes an option names; others are nn.Modules of any library
_OWN = ("attention_", "experiment_kit.")
MAX_CLASSES = 9  # more are listed by the page of a class
MAX_TYPE = 30  # characters
MAX_SENTENCE = 60
MIN_SENTENCE = 16
WRAPPING = 18  # characters that line breaks and brackets take
NAME_WIDTH = 44  # of the column of names
_APPENDING = re.compile(r"(--[\w.]+) (\S+), \1\+ \2")
_BOOLS = re.compile(r" \{true,false(,null)?\}$")


class ShortHelpFormatter(DefaultHelpFormatter):
    """Show the first sentence of an option, its default, and the classes of this project."""

    def __init__(self, prog: str, **kwargs: Any) -> None:
        super().__init__(prog, **kwargs | {"max_help_position": NAME_WIDTH})

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any = None) -> None:
        """Show the program alone: the options follow. A subcommand has no prefix."""
        usage = "%(prog)s" if prefix == "" else "%(prog)s [-c FILE ...] [--option=VALUE ...]"
        super().add_usage(usage, [], [], prefix)

    def add_argument(self, action: Action) -> None:
        """Leave out `--x.help`, and options for the config of a group, which `-c` merges too."""
        is_group = action.metavar == "CONFIG" and "-c" not in action.option_strings
        if not (is_group or any(name.endswith(".help") for name in action.option_strings)):
            super().add_argument(action)

    def _get_default_metavar_for_optional(self, action: Action) -> str:
        return "VALUE"  # not the name again

    def _format_action_invocation(self, action: Action) -> str:
        """Show an option that takes `+` once, as `--x[+]`; a bool takes a value as others do."""
        shown = _APPENDING.sub(r"\1[+] \2", super()._format_action_invocation(action))
        return _BOOLS.sub(" VALUE", shown)

    def _expand_help(self, action: Action) -> str:
        if " --> " in self._format_action_invocation(action):
            return ""  # a link is its own description
        text, found, facts = super()._expand_help(action).rpartition(" (type: ")
        if not found:
            return _SENTENCE.split(facts)[0]
        facts = shorten_facts(f"type: {facts}", with_type=not text.strip()).removesuffix("()")
        two_lines = 2 * (self._width - NAME_WIDTH) - len(facts) - WRAPPING
        room = min(MAX_SENTENCE, max(MIN_SENTENCE, two_lines))
        sentence = textwrap.shorten(_SENTENCE.split(text)[0], room, placeholder=" ...")
        sentence = sentence.removesuffix(".") if not sentence.endswith("...") else sentence
        return f"{sentence} ({facts}".strip() if facts != ")" else sentence


def shorten_facts(facts: str, with_type: bool = True) -> str:
    """Leave out long types, a default of null, and classes of other libraries.

    >>> shorten_facts("type: int, default: 3)")
    'type: int, default: 3)'
    """
    classes = _CLASSES.search(facts)
    names = [name for name in (classes[1].split(", ") if classes else []) if name.startswith(_OWN)]
    facts = re.sub("(, )?default: null", "", _CLASSES.sub("", facts))
    facts = re.sub(r"\{'class_path': '(?:[\w.]+\.)?(\w+)'\}", r"\1", facts)
    if not with_type or len((_TYPE.search(facts) or [""])[0]) > MAX_TYPE:
        facts = _TYPE.sub("", facts, count=1).removeprefix(", ")
    if names and len(names) <= MAX_CLASSES:
        shown = ", ".join(name.rpartition(".")[-1] for name in names)
        facts = f"{_TYPE.sub('', facts)[:-1]}, classes: {shown})".removeprefix(", ")
    return facts
