"""The command line of every app: parse its overlays, then execute the run that they describe.

    attention-<app> {fit,validate,test,predict} -c overlay.yaml ... --key=value

Overlays merge from left to right. A config names classes by their import paths, which imports and
calls them: read the config of a stranger before you run it; `parsing.py` says what is refused.
`fit` trains, resumes an interrupted run, skips a finished one, and ends with one pass over the test
set at the best epoch.
"""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache, cached_property, partial, reduce
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from jsonargparse import Namespace
from lightning.pytorch import Callback, LightningDataModule, Trainer, seed_everything
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from experiment_kit.app import AppSpec
from experiment_kit.arguments import (
    check_flags,
    copy_last_state,
    expand_arguments,
    explain_absent_size,
    take_model,
)
from experiment_kit.data.datamodule import SplitDataModule
from experiment_kit.data.folders import record_data
from experiment_kit.environment import describe_version, search_working_directory_last
from experiment_kit.errors import UserError, convert_user_errors, exit_on_user_error
from experiment_kit.naming import name_run
from experiment_kit.parsing import ConfigFile, ConfigParser, restrict_classes
from experiment_kit.run import Run, RunName, is_whole_checkpoint, parse_step, write_atomically
from experiment_kit.training import lightning_patches as patches
from experiment_kit.training.callbacks import check_callbacks, default_callbacks
from experiment_kit.training.checkpoints import (
    CheckpointOptions,
    PreemptionHandler,
    explain_failure,
)
from experiment_kit.training.loggers import RunLogger, score_and_write_result
from experiment_kit.training.spectral_monitor import SpectralMonitor


class AppCLI(LightningCLI):
    """Parser of an app's command line, and builder of the classes that its config names.

    Its constructor parses, and builds and runs nothing: that of LightningCLI is shown a config
    without a subcommand. It would also let the hyperparameters of a checkpoint override the config:
    https://github.com/Lightning-AI/pytorch-lightning/pull/21455
    """

    def __init__(self, app: AppSpec, args: list[str] | None = None) -> None:
        self.app, self.preemption = app, PreemptionHandler()
        self.arguments, self.source = expand_arguments(app, sys.argv[1:] if args is None else args)
        self.restrict: Callable[[], AbstractContextManager[None]] = nullcontext
        if self.source:  # its config is data, that of `-c` is not
            trust = [a.removeprefix("--trust=") for a in self.arguments if "--trust=" in a]
            self.arguments = [a for a in self.arguments if "--trust=" not in a]
            self.restrict = partial(restrict_classes, self.source / "config.yaml", ",".join(trust))
        patches.prefer_int_in_unions()
        patches.remember_options()
        with self.restrict():
            self.arguments, self.own_model = take_model(self.arguments)
            super().__init__(
                self.own_model or app.model,
                LightningDataModule,
                subclass_mode_data=True,
                save_config_callback=None,
                auto_configure_optimizers=False,
                parser_class=ConfigParser,
                parser_kwargs={
                    "prog": f"attention-{app.name}",
                    "version": describe_version(app.package),
                    "description": "Train, test and use the models of the app. The folder of a run "
                    "in place of all options stands for its config, as in: test RUN.",
                },
                args=self.arguments,
            )
        self.config, self.subcommand = self.parsed, self.parsed.subcommand

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, and hide the result until the constructor has ended."""
        self.parsed = parser.parse_args(args)
        self.config = Namespace(subcommand=None, seed_everything=False)

    def instantiate_classes(self) -> None:
        """Wait for `build_all`."""

    def parse_fit(self, args: Sequence[str]) -> None:
        """Parse the arguments of `fit` again, by the parser that is there."""
        self.config = Namespace(subcommand="fit", fit=self.subparser.parse_args([*args]))

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]  # Lightning's is static
        """Return the given subcommand alone, else all: to build a parser for each takes time."""
        every = super().subcommands()
        return {name: every[name] for name in self.arguments[:1] if name in every} or every

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Build a parser whose option for config files names the file in its errors."""
        parser = cast(ConfigParser, self.parser_class(**kwargs))
        parser.package = self.app.package
        help_text = "YAML file to merge, or a config of the app, as method/gfsa"
        parser.add_argument("-c", "--config", action=ConfigFile, help=help_text)
        return parser

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the seed, which must be a number: Lightning's own option also takes true."""
        parser.add_argument("--seed_everything", type=int, default=0, help="seed of all draws")

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the run's name, the monitor's settings, and the links."""
        self.subparser = cast(ConfigParser, self.parser).subparser = cast(ConfigParser, parser)
        parser.add_class_arguments(RunName, "run")
        parser.add_class_arguments(CheckpointOptions, "checkpoint")
        parser.add_argument("--defaults", type=dict | None, help="read by the launcher alone")
        parser.add_lightning_class_args(SpectralMonitor, "spectral")
        options, links = self.app.links, self.app.links_at_parsing
        if own := self.own_model:
            known = vars(parser.get_defaults().model)
            for each in (parser, self.parser):
                cast(ConfigParser, each).own_options = known
            parser.add_argument("--model_class", default=f"{own.__module__}.{own.__qualname__}")
            options = {k: v for k, v in options.items() if v in known}
            links = {k: v for k, v in links.items() if not k.startswith("model.")}
        for source, target in links.items():
            parser.link_arguments(source, target)
        for source, target in options.items():
            parser.link_arguments(f"data.{source}", f"model.{target}", apply_on="instantiate")

    @property
    def settings(self) -> Any:
        """The parsed config of the subcommand."""
        return self.config[self.subcommand]

    def dump_settings(self, *without: str, file_format: str = "yaml") -> str:
        """Return the config of the subcommand, with nulls and linked values."""
        settings = self.settings.clone()
        for key in without:
            settings.pop(key, None)
        with_all = {"skip_none": False, "skip_link_targets": False}
        # parsing has validated it
        return self.subparser.dump(settings, format=file_format, skip_validation=True, **with_all)

    @cached_property
    def run(self) -> Run:
        """The run that the config, its files and its start checkpoint identify."""
        config = self.read_settings()
        for key, name in name_run(self.app.package, config).items():
            self.settings.run[key] = name
        if self.source and self.subcommand != "fit":
            return Run(self.source)
        return find_run(self.app, config, fitting=self.subcommand == "fit")

    def read_settings(self) -> dict[str, Any]:
        """Return the parsed config as a plain mapping."""
        return json.loads(self.dump_settings("config", "defaults", file_format="json"))

    def _dump_config(self) -> None:
        """Keep the settings as hyperparameters; Lightning would validate and print them again."""
        self.config_dump = vars(self).get("config_dump") or self.read_settings()

    def build_model_and_data(self, shape_only: bool = False) -> tuple[Any, Any]:
        """Build model and data module alone; raises UserError for arguments that do not fit.

        With `shape_only`, stand-ins of the app replace data modules that would read files.
        """
        stand_ins = self.app.shape_only_data.items() if shape_only else ()
        makers = [(lambda _, make=make, **kw: make(**kw), kind, True) for kind, make in stand_ins]
        kinds = TypeError, ValueError
        with self.restrict(), convert_user_errors(*kinds), explain_absent_size(self.app.links):
            built = self.parser.instantiate(self.config, instantiators=makers)[self.subcommand]
        return built.model, built.data

    def build_all(self) -> None:
        """Seed, then build `model`, `datamodule` and `trainer`."""
        self.sharded = patches.disable_sharded_saving(self.settings.trainer.strategy)
        seed_everything(self.settings.seed_everything, workers=True)
        with self.restrict(), explain_absent_size(self.app.links):
            super().instantiate_classes()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer of the config, with the callbacks and the logger of every run."""
        settings, fitting = self.config_init[self.subcommand], self.subcommand == "fit"
        options, is_ours = settings.trainer, isinstance(settings.data, SplitDataModule)
        if is_ours and not options.use_distributed_sampler:
            raise UserError(
                "trainer.use_distributed_sampler: each device has its part of the data by the data"
                " module itself: leave it out, or bring a data module of your own"
            )
        if fitting and settings.ckpt_path and self.sharded:
            patches.check_sharded(settings.ckpt_path)
        callbacks: list[Callback] = [RichProgressBar()] * (options.enable_progress_bar is not False)
        if fitting:
            given = _as_list(self.settings.trainer.callbacks)
            check_callbacks(_as_list(options.callbacks), given, settings.model)
            callbacks += default_callbacks(
                *(self.run, settings.seed_everything, self.app.monitor),
                *(settings.checkpoint, self.preemption),
            )
        loggers = _as_list(options.logger)
        if fitting and options.logger is not False:
            loggers = [RunLogger(self.run, settings.ckpt_path), *loggers]
        self.trainer_defaults = {"callbacks": callbacks}
        return super().instantiate_trainer(
            default_root_dir=self.run.folder,
            use_distributed_sampler=options.use_distributed_sampler and not is_ours,
            plugins=[patches.AtomicCheckpointIO(self.sharded), *_as_list(options.plugins)],
            logger=loggers,
        )


def find_run(app: AppSpec, config: Mapping[str, Any], fitting: bool = True) -> Run:
    """Return the run that a merged config, a plain mapping, identifies with its files."""
    named = {key: read_option(config, key) for key in app.hashed_files}
    named["start"] = config.get("ckpt_path") if fitting else None
    # a value that names no local file, such as weights on a hub, has no content to hash
    contents = {
        key: _hash_file(path.resolve(), path.stat().st_mtime_ns)
        for key, name in named.items()
        if name and (path := Path(name)).is_file()
    }
    files = {"start": contents.pop("start", None), "files": contents or None}
    with convert_user_errors(ValueError):
        return Run.from_config(app.name, {**config, **files, "run": name_run(app.package, config)})


def read_option(config: Any, key: str) -> Any:
    """Return the value under a dotted key; None where there is none."""
    return reduce(lambda part, name: (part or {}).get(name), key.split("."), config)


@cache
def _hash_file(path: Path, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run_app(app: AppSpec, args: list[str] | None = None) -> None:
    """Run an app's command line; a mistake is one sentence and exit status 2."""
    patches.drop_chatter()
    search_working_directory_last()
    with exit_on_user_error():
        execute(AppCLI(app, args))


def execute(cli: AppCLI) -> Trainer | None:
    """Execute the parsed subcommand on its run; return None for a finished run."""
    settings, fitting = cli.settings, cli.subcommand == "fit"
    check_flags(settings.trainer)
    with cli.preemption, ExitStack() as stack:
        if fitting and settings.trainer.fast_dev_run:  # a trial leaves nothing
            settings.run.folder = stack.enter_context(TemporaryDirectory())
        run = cli.run
        # a finished run may be on a disk that is read-only, where it cannot be locked
        if fitting and run.read_result() is None and patches.is_first_process():
            stack.enter_context(run.lock())
        if fitting and run.read_result() is not None:
            if settings.ckpt_path not in (None, "last"):  # refuse a missing file all the same
                find_start_checkpoint(run, settings.ckpt_path, fitting)
            print(f"already finished: {run.folder}")
            return None
        if fitting and cli.source and patches.is_first_process():
            copy_last_state(Run(cli.source), run, cli.read_settings())
        settings.weights_only = True
        settings.ckpt_path = find_start_checkpoint(run, settings.ckpt_path, fitting)
        kinds = (TypeError, ValueError, MisconfigurationException, ModuleNotFoundError)
        with convert_user_errors(*kinds):
            cli.build_all()
        if fitting and patches.is_first_process():
            record_data(run, getattr(cli.datamodule, "list_data_files", tuple)())
            run.save_config(cli.dump_settings("config", "ckpt_path", "defaults"))
        with (
            convert_user_errors(MisconfigurationException),
            explain_absent_size(cli.app.links),
            explain_failure(cli.preemption, settings.ckpt_path),
        ):
            method = getattr(cli.trainer, str(cli.subcommand))
            given = cli.config_init[cli.subcommand]
            arguments = {key: given[key] for key in signature(method).parameters if key in given}
            began = time.perf_counter()
            outputs = method(**arguments, datamodule=cli.datamodule)
            if fitting:
                score_and_write_result(cli, time.perf_counter() - began)
        if cli.subcommand == "predict":
            write_atomically(run.folder / "predictions.pt", partial(torch.save, outputs))
            print(f"wrote {run.folder}/predictions.pt")
    return cli.trainer


def find_start_checkpoint(run: Run, given: str | None, fitting: bool) -> str | None:
    """Return the given checkpoint, else the one to resume from, or the one to evaluate."""
    if fitting and given == "best":
        text = "ckpt_path best has weights alone: leave it out, to go on from the last state"
        raise UserError(text)
    if given and given not in ("best", "last"):
        if not is_whole_checkpoint(Path(given), resumable=fitting):
            remedy = ", with more than weights: give a step=N.ckpt to go on from" * fitting
            raise UserError(f"ckpt_path {given} is not a whole checkpoint{remedy}")
        return given
    is_last = fitting or given == "last"
    found = run.find_newest_checkpoint() if is_last else run.find_test_checkpoint()
    if found is None:
        if not fitting:
            remedy = "run fit, name the folder of a run, as in test RUN, or give ckpt_path"
            raise UserError(f"{run.folder} is not trained: {remedy}")
        return None
    if fitting:
        print(f"resuming {run.folder} from step {parse_step(found)}", flush=True)
    return str(found)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value not in (None, True, False) else []
