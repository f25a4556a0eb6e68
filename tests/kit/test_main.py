"""The commands describe themselves, and the light ones import nothing heavy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from experiment_kit.__main__ import COMMANDS, FOR_APPS, load_command, prepare_arguments
from experiment_kit.commands.list import list_experiments
from experiment_kit.errors import UserError
from jsonargparse import auto_parser

UNDESCRIBED = ("==SUPPRESS==", None, "")


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in FOR_APPS])
def test_every_option_has_a_description(command: str) -> None:
    function = load_command(command)
    parser = auto_parser(function, as_positional=False)
    options = {action.dest: action.help for action in parser._actions if action.dest != "help"}
    absent = [name for name, text in options.items() if text in UNDESCRIBED]
    assert not absent, f"name them in Args: of the docstring of {function.__name__}"


@pytest.mark.parametrize(("command", "text"), [
    ("--help", "compare"), ("--version", "torch 2"), ("list", "27, gfsa-table-5"),
    ("list --help", "list [--name NAME]\n"),
])  # fmt: skip
def test_a_light_command_imports_no_torch_in_any_encoding(command: str, text: str) -> None:
    code = "import sys; from experiment_kit.__main__ import main; main(); print('±'); " \
           "assert 'torch' not in sys.modules"  # fmt: skip
    words = [sys.executable, "-c", code, *command.split()]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert (text in done.stdout, "?" in done.stdout) == (True, False)


def test_a_paper_is_listed_with_all_its_tables(capsys) -> None:
    list_experiments("record-straight")
    assert capsys.readouterr().out.count("│ record-straight-") == 3


def predict(run: str, files: list[str], out: str = "", pretrained: bool = False) -> None: ...


@pytest.mark.parametrize(("given", "prepared"), [
    (["a", "b", "--out=x", "[c]"], ["a", '["b", "[c]"]', "--out=x"]),
    (["a", "~/b", "--out=~/x"], ["a", '["~/b"]', f"--out={Path.home()}/x"]),
    (["a", "b", "--pretrained"], ["a", '["b"]', "--pretrained=true"]),
    (["a", "b", "--pretrained", "commands"], ["a", '["b"]', "--pretrained=commands"]),
])  # fmt: skip
def test_arguments_are_prepared_for_the_parser(given, prepared) -> None:
    assert prepare_arguments(predict, given) == prepared


def test_an_unknown_option_is_named_with_those_there_are() -> None:
    with pytest.raises(UserError, match=r"'--outt' \(did you mean --out.*allowed: --files, --help"):
        prepare_arguments(predict, ["a", "--outt=3"])
    assert prepare_arguments(predict, ["a", "out=3"]) == ["a", '["out=3"]']
    for word, text in (("--lr=1", "as --trainer.max_epochs=3"), ("data=d", "mean --data")):
        with pytest.raises(UserError, match=text):
            prepare_arguments(load_command("config"), ["vision", word])
    with pytest.raises(UserError, match=r"did you mean compare.*allowed: train, table"):
        load_command("comparee")
