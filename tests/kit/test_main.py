"""The commands describe themselves."""

import pytest
from experiment_kit.__main__ import COMMANDS
from jsonargparse import auto_parser

UNDESCRIBED = ("==SUPPRESS==", None, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_description(command: str) -> None:
    parser = auto_parser(COMMANDS[command], as_positional=False)
    options = {action.dest: action.help for action in parser._actions if action.dest != "help"}
    absent = [name for name, text in options.items() if text in UNDESCRIBED]
    assert not absent, f"name them in Args: of the docstring of {COMMANDS[command].__name__}"
