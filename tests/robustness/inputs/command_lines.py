"""Command lines of the apps: every option with values of the wrong kind or range."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from experiment_kit.cli import AppCLI, run_app
from jsonargparse import Namespace

from tests.apps.cases import CASES
from tests.apps.contract import AppCase
from tests.robustness.fork import Reached
from tests.robustness.inputs.accepted import HUGE, find_reason
from tests.robustness.inputs.case import Case

KIND = "command line"
STRUCTURES = ("", "null", "[1]", "{a: 1}")
NUMBERS = ("abc", "-1", "0", HUGE, ".nan", ".inf", "1.5", *STRUCTURES)
TEXTS = ("abc", "0", *STRUCTURES)
SWITCHES = ("abc", "2", *STRUCTURES)
KIT = ("seed_everything", "trainer.", "run.", "spectral.", "checkpoint.", "model.optimizer.",
       "ckpt_path", "weights_only")  # fmt: skip
LAUNCHER_ONLY = ("config", "defaults")
FULL_SIZE = "model.options", "null"  # is right: the architecture's own size, too slow for a case


def list_options(settings: Namespace, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """List the keys of a parsed config and their values, those of the classes in it too."""
    for key, value in vars(settings).items():
        if isinstance(value, Namespace):
            yield from list_options(value, f"{prefix}{key}.")
        elif prefix + key not in LAUNCHER_ONLY:
            yield prefix + key, value


def list_bad_values(value: Any) -> Sequence[str]:
    """List values that an option with this value probably cannot have."""
    if isinstance(value, bool):
        return SWITCHES
    return TEXTS if isinstance(value, str) else NUMBERS


def list_cases() -> Iterator[Case]:
    for app in CASES:
        parsed = AppCLI(app.app, ["fit", *app.tiny_arguments()]).settings
        for option, value in list_options(parsed):
            # the options of the kit are the same in every app
            if option.startswith(KIT) and app.name != "sequence":
                continue
            for bad in list_bad_values(value):
                if (option, bad) == FULL_SIZE:
                    continue
                yield make_case(app, [f"--{option}={bad}"], mentions=name_option(option, bad))
            for unknown in (f"{option}x", option[:-1]):
                yield make_case(app, [f"--{unknown}=1"], mentions=name_option(unknown))


def name_option(option: str, value: str = "") -> str:
    """A pattern of the sentence: the option's last name, or its value."""
    names = option.removesuffix(".class_path").rpartition(".")[2], value.strip("[]")
    # a loss that is no number shows a rate that is too high
    if option.endswith(("lr", "weight_decay", "factor")):
        names += ("learning rate",)
    if option.endswith("data_dir"):
        names += ("DATA_DIR",)
    return "|".join(re.escape(name) for name in names if len(name) > 1)


def make_case(
    app: AppCase, arguments: Sequence[str], subcommand: str = "fit", mentions: str = ""
) -> Case:
    run, name = partial(run_tiny, app, subcommand, arguments), " ".join((subcommand, *arguments))
    return Case(KIND, app.name, name, run, mentions, find_reason(name, app.name))


def run_tiny(app: AppCase, subcommand: str, arguments: Sequence[str]) -> None:
    """Run the smallest network of an app until a few steps are trained."""
    reuse_parsers()
    stop_training(app, 30 if any(a.startswith("--trainer") for a in arguments) else 2)
    run_app(app.app, [subcommand, *app.tiny_arguments(*arguments)])


def stop_training(app: AppCase, steps: int) -> None:
    """Leave the child at a step of training: the arguments have been accepted."""
    train, count = app.app.model.training_step, 0

    def count_step(self: Any, *batch: Any) -> Any:
        nonlocal count
        count += 1
        if count > steps:
            raise Reached
        return train(self, *batch)

    app.app.model.training_step = count_step


def reuse_parsers() -> None:
    """Let the children use the parsers of `fit` that the parent has made, which takes time."""
    made = {app.app.name: vars(app.cli) for app in CASES}
    build_parser = AppCLI.setup_parser

    def setup_parser(self: AppCLI, *arguments: Any) -> None:
        if self.arguments[:1] != ["fit"]:
            return build_parser(self, *arguments)
        known = made[self.app.name]
        for name in ("parser", "_subcommand_method_arguments", "_subcommand_parsers"):
            if name in known:
                setattr(self, name, known[name])
        return None

    AppCLI.setup_parser = setup_parser
