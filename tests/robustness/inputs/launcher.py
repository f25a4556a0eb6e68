"""Command lines of `python -m experiment_kit`: every option of every command, and names."""

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from experiment_kit import __main__ as entry
from experiment_kit.cli import run_app
from experiment_kit.launch.plan import load_app
from experiment_kit.pages import run_figures as figures
from jsonargparse import set_parsing_settings

from tests.apps.cases import CASES, SEQUENCE
from tests.robustness.fork import Reached
from tests.robustness.inputs.accepted import HUGE, find_reason
from tests.robustness.inputs.case import Case
from tests.robustness.inputs.command_lines import name_option, reuse_parsers, stop_training

KIND = "launcher"
EXPERIMENT = tuple(SEQUENCE.arguments())
# a command line that works, to which a bad option is added
VALID = {
    "run": ("run", "sequence", "--profile=smoke"),
    "compare": ("compare", "sequence", "--profile=smoke"),
    "table": (
        "table",
        "agf-table-1",
        "--profile=smoke",
        "--seeds=[0]",
        "--rows=[transformer]",
        "--columns=[japanese_vowels]",
    ),
    "plan": (
        "plan",
        "agf-table-1",
        "--profile=smoke",
        "--seeds=[0]",
        "--rows=[transformer]",
        "--columns=[japanese_vowels]",
        "--measure=false",
    ),
    "list": ("list",),
    "efficiency": ("efficiency", "sequence", *EXPERIMENT),
    "eigenvalues": ("eigenvalues", "sequence", *EXPERIMENT),
    "config": ("config", "sequence"),
    "data": ("data", "no-such-data"),
}
VALUES = ("abc", "-1", HUGE, ".nan", "", "null", "[]", "[1]", "[abc]", "{a: 1}", "../base",
          "/etc/passwd")  # fmt: skip
MEASURED = {
    "efficiency": ("device", "batch_size", "precision", "repeats"),
    "eigenvalues": ("samples",),
}
# command lines, and a pattern of the sentence
HAND_MADE = (
    ("nonsense", "nonsense"),
    ("ru", "ru"),
    ("--nonsense", "nonsense"),
    ("run", "app"),
    ("run nonsense", "nonsense"),
    ("run ../sequence", "sequence"),
    ("run sequence --data=nonsense", "nonsense"),
    ("run sequence --backbone=lra", "lra|data|length"),
    ("run sequence --method=nonsense", "nonsense"),
    ("run sequence --recipe=nonsense", "nonsense"),
    ("run sequence --action=nonsense", "action"),
    ('run sequence --args="\'"', "args|quot"),
    ("run sequence --args=--nonsense=1", "nonsense"),
    ("run sequence --args=--seed_everything=5", "seed"),
    ("run sequence --see=1", "see"),
    ("run sequence --app=vision", "app"),
    ("run sequence japanese_vowels uea plain x y z w v", "."),
    ("compare", "app"),
    ("compare nonsense", "nonsense"),
    ("compare sequence --methods=[]", "method"),
    ("compare sequence --methods=[nonsense]", "nonsense"),
    ("compare sequence --methods=[plain,plain]", "plain"),
    ("compare sequence --methods=plain", "methods"),
    ("compare sequence --seeds=[]", "seed"),
    ("compare sequence --seeds=0", "seeds"),
    ("compare sequence --seeds=[-1]", "seed"),
    ("compare sequence --seeds=[0,0]", "seed"),
    ('compare sequence --args="\'"', "args|quot"),
    ("compare sequence --args=--seed_everything=5", "seed"),
    ("compare sequence --args=--run.folder=x", "folder"),
    ("compare sequence --jobs=-1", "jobs"),
    ("compare sequence --folder=/proc/x", "/proc/x"),
    ("table", "table"),
    ("table nonsense", "nonsense"),
    ("table ../agf-table-1", "agf-table-1"),
    ("table agf-table-1 --nonsense=1", "nonsense"),
    ("table agf-table-1 --table=agf-table-2", "table"),
    ("table agf-table-1 smoke validation [0] [transformer] [japanese_vowels] 0 x y true z", "."),
    ("table agf-table-1 --rows=[]", "rows"),
    ("table agf-table-1 --rows=[nonsense]", "nonsense"),
    ("table agf-table-1 --columns=[]", "columns"),
    ("table agf-table-1 --columns=[nonsense]", "nonsense"),
    ("table agf-table-1 --protocol=nonsense", "nonsense"),
    ("table agf-table-1 --profile=nonsense", "nonsense"),
    ("table agf-table-1 --profile=../base", "base|profile"),
    ("table agf-table-1 --seeds=[]", "seed"),
    ("table agf-table-1 --seeds=[-1]", "seed"),
    ("table agf-table-1 --jobs=-1", "jobs"),
    ("table agf-table-1 --jobs=1.5", "jobs"),
    ("table agf-table-1 --train=maybe", "train"),
    ("table agf-table-1 --train=false --out=/proc/x", "/proc/x"),
    ("table agf-table-1 --train=false --folder=/proc/x", "/proc/x"),
    ("plan", "name"),
    ("plan nonsense", "nonsense"),
    ("plan agf-table-1 --accelerator=tpu", "tpu"),
    ("plan agf-table-1 --utilization=0", "utilization"),
    ("plan agf-table-1 --rows=[]", "rows"),
    ("plan agf --rows=[agf]", "rows"),
    ("list nonsense", "nonsense"),
    ("list --nonsense", "nonsense"),
    ("efficiency", "app"),
    ("efficiency nonsense", "nonsense"),
    ("efficiency sequence", "data"),
    ("efficiency sequence --device=tpu", "device"),
    ("efficiency sequence --device=cuda", "cuda"),
    ("efficiency sequence --repeats=0", "repeats"),
    ("efficiency sequence --nonsense=3", "nonsense"),
    ("eigenvalues sequence", "data"),
    ("eigenvalues sequence --samples=0", "samples"),
    ("data", "data is missing"),
    ("data nonsense", "no data set 'nonsense'"),
    ("data uea", "DATA_DIR"),
    ("data uea nonsense", "nonsense"),
    ("data --nonsense", "nonsense"),
    ("weights", "model is missing"),
    ("weights nonsense", "nonsense is not cached"),
    ("predict", "run"),
    ("predict nonsense", "files"),
    ("predict nonsense a.txt", "a.txt"),
    ("disagreements", "run_a"),
    ("disagreements a b", "a is the folder of no finished run"),
    ("config", "app"),
    ("config nonsense", "nonsense"),
    ("config sequence --method=nope", "nope"),
    ("config sequence --data=nope", "nope"),
    ("config sequence --model.filter.K=9", "K"),
    ("compare sequence --profile=smoke --grid=nonsense", "nonsense"),
    ("compare sequence --profile=smoke --grid=model.filter.K=", "grid"),
)


def list_cases() -> Iterator[Case]:
    for line, mentions in HAND_MADE:
        yield make_case(split_line(line), mentions, line)
    for command, valid in VALID.items():
        for option in list_options(command):
            # the first argument is given by its name instead
            rest = (command, *valid[2:]) if option in ("app", "table", "name") else valid
            for value in VALUES:
                # the last two are of eigenvalues and of --args
                mentions = f"{name_option(option, value)}|is not trained|unrecognized arguments"
                yield make_case((*rest, f"--{option}={value}"), mentions)
            yield make_case((*valid, f"--{option}x=1"), name_option(f"{option}x"))
            yield make_case((*valid, f"--{option[:-1]}=1"), name_option(option[:-1]))


def split_line(line: str) -> Sequence[str]:
    # not shlex: an unclosed quote is one of the cases
    return [part.strip('"') for part in line.split()]


def list_options(command: str) -> Sequence[str]:
    if command in MEASURED:
        return MEASURED[command]
    return [*inspect.signature(entry.COMMANDS[command]).parameters]


def make_case(arguments: Sequence[str], mentions: str, name: str = "") -> Case:
    # the files of the experiment add nothing to what is wrong
    name = name or " ".join(part for part in arguments if part not in EXPERIMENT)
    return Case(
        KIND, "launcher", name, partial(run_launcher, arguments), mentions, find_reason(name)
    )


def run_launcher(arguments: Sequence[str]) -> None:
    """Run the launcher until it would start a process of training."""
    reuse_parsers()
    figures.embed_figure = lambda *_: ""  # it takes most of the time
    for app in CASES:
        stop_training(app, 1)
    real_start = subprocess.Popen.__init__

    def start(self: Any, command: Any, *args: Any, **options: Any) -> None:
        if command[0] == sys.executable:
            raise Reached
        real_start(self, command, *args, **options)

    subprocess.Popen.__init__ = start  # type: ignore[method-assign]
    os.execv = run_in_place  # type: ignore[assignment]
    assert os.execv is run_in_place
    sys.argv = ["experiment_kit", *arguments]
    entry.main()


def run_in_place(_: str, command: Sequence[str]) -> None:
    """Run the app that the launcher would become."""
    set_parsing_settings(parse_optionals_as_positionals=False)  # of the launcher's process
    module = command[2]
    run_app(load_app(re.sub("^attention_", "", module)), [*command[3:]])
