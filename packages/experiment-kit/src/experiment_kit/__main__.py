"""`allpass COMMAND`: experiments and tables by name, measurements, downloads."""

import io
import json
import re
import shlex
import sys
from argparse import SUPPRESS
from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import signature
from typing import Any

from jsonargparse import auto_cli, auto_parser

from experiment_kit import environment
from experiment_kit.errors import check_name, exit_on_signal, exit_on_user_error

COMMANDS = {  # the module, the function in it, and its help
    "train": ("commands.compare", "train_methods", "train a method, or several and compare them"),
    "table": ("commands.table", "make_table", "train the missing cells of a table"),
    "diagnose": ("commands.diagnose", "diagnose_models", "say where a model over-smooths, and why"),
    "compare": ("commands.compare", "compare_methods", "train what is missing, compare methods"),
    "list": ("commands.list", "list_experiments", "list experiments and tables"),
    "config": ("commands.config", "print_config", "print the merged config of an experiment"),
    "search": ("commands.search", "search_grid", "choose the best point of a grid"),
    "disagreements": ("commands.disagreements", "list_disagreements", "list where two runs differ"),
    "predict": ("commands.predict", "predict_files", "answer files of your own"),
    "verify": ("commands.verify", "verify_run", "recompute the metrics of a finished run"),
    "figure": ("commands.figure", "make_figure", "draw a printed figure, or those of a paper"),
    "plan": ("commands.plan", "plan_tables", "say what a table or a paper costs and lacks"),
    "index": ("commands.index", "make_index", "write the page of all printed tables"),
    "reproduce": ("commands.reproduce", "reproduce_tables", "run a cell of every table"),
    "data": ("commands.obtain", "obtain_data", "download or draw a data set"),
    "weights": ("commands.obtain", "obtain_weights", "download pretrained weights"),
    "efficiency": ("commands.measure", "run_efficiency", "measure the cost of a model"),
    "eigenvalues": ("commands.measure", "run_eigenvalues", "measure eigenvalues of a run"),
}  # fmt: skip
VALUES = ("true", "false", "commands")  # that a flag may have
FOR_APPS = ("efficiency", "eigenvalues")  # their arguments are those of an app's `fit`


def main() -> None:
    """Run the command line."""
    command, arguments = (sys.argv[1:2] or ["--help"])[0], sys.argv[2:]
    environment.search_working_directory_last()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # some encodings lack ± and Δ
    if command == "--version":
        print(environment.describe_version("experiment_kit"))
        return
    if command in ("-h", "--help"):
        print("usage: allpass COMMAND ..., each with --help\n")
        print(*(f"  {name:14} {text}" for name, (_, _, text) in COMMANDS.items()), sep="\n")
        return
    with exit_on_user_error(), exit_on_signal():
        function = load_command(command)
        if command in FOR_APPS:
            function(arguments)
            return
        options: dict[str, Any] = {"exit_on_error": False, "allow_abbrev": False}
        options |= {"config_help": SUPPRESS, "print_config": None}  # lists need our preparation
        given = prepare_arguments(function, arguments)
        auto_cli(function, given, prog=f"allpass {command}", **options)


def load_command(name: str) -> Callable[..., Any]:
    """Import the function of a command; the others take seconds and are not imported."""
    module, function, _ = COMMANDS[check_name(name, COMMANDS, "command")]
    return getattr(import_module(f"experiment_kit.{module}"), function)


def prepare_arguments(command: Callable[..., Any], arguments: Sequence[str]) -> list[str]:
    """Put options with a dot and `-c` into `--args`, a,b into lists; `--flag` is `--flag=true`.

    >>> def train(app, methods=(), dry_run=False, args=""): ...
    >>> prepare_arguments(train, ["nlp", "--method=plain gfsa", "--dry_run", "--model.filter.K=5"])
    ['nlp', '--methods=[plain,gfsa]', '--dry_run=true', '--args=--model.filter.K=5']
    """
    parser = auto_parser(command, fail_untyped=False, as_positional=False)
    parameters = {k: v for k, v in vars(parser.get_defaults()).items() if k != "config"}
    options = {"-h", "--help", *(f"--{name}".rstrip("_") for name in parameters)}
    flags = {f"--{name}" for name, default in parameters.items() if default is False}
    given: list[str] = []
    for argument in environment.expand_home(arguments):  # `--name value` becomes `--name=value`
        is_value = not re.match(r"-[a-zA-Z-]", argument) or given[-1:] == ["--args"]
        is_name = bool(given) and re.fullmatch(r"-c|--[\w.]+\+?", given[-1])
        if is_value and is_name and (given[-1] not in flags or argument in VALUES):
            given[-1] += f"={argument}"
        else:
            given.append(argument)
    given = [f"{argument}=true" if argument in flags else argument for argument in given]
    plural = "|".join(n for n in ("method", "seed") if f"{n}s" in parameters)
    given = [re.sub(rf"^--({plural})=", r"--\1s=", a) if plural else a for a in given]
    lists = r"^--(methods|seeds|rows|columns|shape)=([^\[].*)"
    given = [re.sub(lists, lambda m: f"--{m[1]}=[{re.sub('[ ,]+', ',', m[2])}]", a) for a in given]
    of_app = r"(-c|--config|--\w+(\.\w+)+\+?)="
    own = [a for a in given if "args" in parameters and re.match(of_app, a)]
    given = [a for a in given if a not in own] + ([f"--args={shlex.join(own)}"] if own else [])
    for start in ("--args=", "--grid="):  # may be given several times
        texts = [a.removeprefix(start) for a in given if a.startswith(start)]
        given = [a for a in given if not a.startswith(start)]
        given += [start + " ".join(filter(None, texts))] if texts else []
    more = ["and, of attention-<app> fit, those with a dot, as --trainer.max_epochs=3"]
    allowed = sorted(options) + more * ("args" in parameters)
    for name, equals, _ in (argument.partition("=") for argument in given):
        is_word = "files" in parameters or not (equals and f"--{name}" in options)
        if name.startswith("-") or not is_word:
            check_name(name.rstrip("_"), allowed, "option")
    given = [re.sub(r"^--class=", "--class_=", a) for a in given]  # class is a word of Python
    return place_arguments(command, given)


def place_arguments(command: Callable[..., Any], given: Sequence[str]) -> list[str]:
    """Put required arguments first, by their place or their name; FILE... and MODEL... are lists.

    >>> def predict(run, files, out=""): ...
    >>> place_arguments(predict, ["a.txt", "b.txt", "--run=RUN", "--out=c"])
    ['RUN', '["a.txt", "b.txt"]', '--out=c']
    """
    places = [a for a in given if not a.startswith("-")]
    named = [a for a in given if a.startswith("-")]
    parameters = signature(command).parameters
    single = (p for p in parameters.values() if p.kind is not p.VAR_KEYWORD)
    required = [p.name for p in single if p.default is p.empty]
    for place, name in enumerate(required):
        option = f"--{name}="
        places[place:place] = [a.removeprefix(option) for a in named if a.startswith(option)]
        named = [a for a in named if not a.startswith(option)]
    if "files" in parameters:
        places = [*places[:1], json.dumps(places[1:])]
    elif "models" in parameters:
        places = [json.dumps([name for a in places for name in environment.split_list(a)])]
    elif places and not required:  # the first may be left out, as in `list APP`
        places[0] = f"--{next(iter(parameters))}={places[0]}"
    return [*places, *named]


if __name__ == "__main__":
    main()
