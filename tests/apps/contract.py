"""One app under contract: its smallest run on data that needs no download, and its mistakes."""

import io
import os
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from experiment_kit.app import AppSpec
from experiment_kit.app_cli import AppCLI
from experiment_kit.app_files import find_app_folder
from experiment_kit.cli import run_app
from experiment_kit.launch import overlays
from experiment_kit.run import Run

QUIET = (
    *("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"),
    *("--trainer.limit_val_batches=2", "--trainer.limit_test_batches=2"),
)


@dataclass(frozen=True, eq=False)
class AppCase:
    """An app, and the little that the contract must be told about it.

    The smallest run is that of the app's default data set, which needs no download, and of its
    default overlays; `tiny` shrinks it to seconds, `tiny_of` a method that needs more. A key of
    `mistakes` is an argument, in which `{file}` stands for a file that cannot be read; the value
    is a pattern of the message. `unfit` holds patterns of the message for methods that the
    smallest network cannot host, `beside` the overlays that an overlay needs beside it.
    `host_arguments` are constructor arguments that the network gives to a mechanism, not its
    overlay. `scale` are settings that a profile of this app may change besides those of `SCALE`.
    """

    app: AppSpec
    tiny: tuple[str, ...]
    metrics: frozenset[str]
    mistakes: Mapping[str, str]
    tiny_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    beside: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    unfit: Mapping[str, str] = field(default_factory=dict)
    host_arguments: frozenset[str] = frozenset({"dim", "num_heads", "eps"})
    scale: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return self.app.name

    @property
    def folder(self) -> Path:
        return find_app_folder(self.name) / "configs"

    def names(self, kind: str) -> list[str]:
        return overlays.list_overlays(self.name, kind)

    def read(self, kind: str, name: str) -> Any:
        return overlays.read_overlay(self.name, kind, name)

    def arguments(self, *extra: str, method: str = "plain", **chosen: str) -> list[str]:
        """The command line of the overlays that are chosen, and of the defaults beside them."""
        for name in tuple(chosen.values()):
            chosen = {**self.beside.get(name, {}), **chosen}
        chosen = {"data": None, "profile": "", "method": method} | chosen
        filled = overlays.choose_overlays(self.name, **chosen)
        return overlays.overlay_arguments(self.name, extra, method=method, **filled)

    @cached_property
    def cli(self) -> AppCLI:
        return AppCLI(self.app, ["fit", *self.arguments()])

    def parse(self, *extra: str, **chosen: str) -> Any:
        self.cli.parse_fit(self.arguments(*extra, **chosen))
        return self.cli.settings

    def build(self, arguments: Sequence[str]) -> Any:
        """The model and the data of a command line."""
        parser = self.cli.subparser
        return parser.instantiate_classes(parser.parse_args([*arguments]))

    def model(self, *extra: str, **chosen: str) -> Any:
        return self.build(self.arguments(*extra, **chosen)).model

    def slots(self) -> list[str]:
        """The options that take the import path of a class: the parser offers help of each."""
        actions = self.cli._parser("fit")._actions
        return [a.dest.removesuffix(".help") for a in actions if a.dest.endswith(".help")]

    def tiny_arguments(self, *extra: str, **chosen: str) -> list[str]:
        small = (*QUIET, *self.tiny, *self.tiny_of.get(chosen.get("method", ""), ()))
        return self.arguments(*small, *extra, **({"profile": "smoke"} | chosen))

    def run(self, subcommand: str, *extra: str, **chosen: str) -> "Outcome":
        """Run the command line in this process on the smallest network."""
        out, error, status = io.StringIO(), io.StringIO(), 0
        with redirect_stdout(out), redirect_stderr(error):
            try:
                run_app(self.app, [subcommand, *self.tiny_arguments(*extra, **chosen)])
            except SystemExit as exit:
                status = exit.code
        return Outcome(status, out.getvalue(), error.getvalue())

    def fit(self, folder: Path, *extra: str, **chosen: str) -> Run:
        """Train in this process, and return the one run in the folder."""
        run_app(self.app, ["fit", *self.tiny_arguments(f"--run.folder={folder}", *extra, **chosen)])
        return find_run(folder)


class Outcome(NamedTuple):
    """The exit status of a command, and the text that it printed."""

    status: int
    out: str
    error: str


def interrupt_training(patch: pytest.MonkeyPatch, case: AppCase, step: int) -> None:
    """Send SIGTERM to this process before the given step of training."""
    steps, training_step = count(1), case.app.model.training_step

    def interrupt(self: Any, *batch: Any) -> Any:
        if next(steps) == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return training_step(self, *batch)

    patch.setattr(case.app.model, "training_step", interrupt)


def stop_training(case: AppCase, folder: Path, step: int, *extra: str, **chosen: str) -> None:
    """Start or resume the smallest run in this process, and stop it at the given step of it."""
    with pytest.MonkeyPatch.context() as patch:
        interrupt_training(patch, case, step)
        outcome = case.run("fit", f"--run.folder={folder}", *extra, **chosen)
    assert outcome.status == 75, outcome.error
    assert re.search(r"^stopped at step \d+: the same command resumes$", outcome.error, re.M)


def find_run(folder: Path) -> Run:
    (config,) = folder.rglob("config.yaml")
    return Run(config.parent)
