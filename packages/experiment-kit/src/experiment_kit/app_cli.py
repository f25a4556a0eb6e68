"""The parser of an app's command line, and the builder of the classes that its config names.

    attention-<app> {fit,validate,test,predict} -c overlay.yaml ... --key=value
    attention-<app> {fit,validate,test,predict} RUN --key=value

Overlays merge from left to right. RUN is the folder of a run, which stands for its config;
`parsing.py` says which classes a config may name.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from os.path import abspath
from pathlib import Path
from typing import Any, cast

from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch import Callback, LightningDataModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.model_helpers import is_overridden

from experiment_kit.app import AppSpec, hash_file
from experiment_kit.app_files import KINDS, find_config, list_apps, name_run, read_settings
from experiment_kit.data.datamodule import SplitDataModule
from experiment_kit.environment import describe_version, expand_home
from experiment_kit.errors import UserError, convert_user_errors, find_own_line
from experiment_kit.parsing import ConfigFile, ConfigParser, restrict_classes
from experiment_kit.run import Run, RunName
from experiment_kit.training import lightning_patches as patches
from experiment_kit.training.callbacks import RunLogger, check_callbacks, default_callbacks
from experiment_kit.training.checkpoints import CheckpointOptions, PreemptionHandler
from experiment_kit.training.module import AttentionModule
from experiment_kit.training.spectral_monitor import SpectralMonitor

_OPTIONS = {
    "optimizer": "the model has it: --model.optimizer=SGD --model.optimizer.lr=0.1",
    "lr_scheduler": "the model has it: --model.schedule=CosineSchedule",
    "files": "allpass predict RUN FILE... answers files",
    "seed": "name it by --seed_everything=N",
    **{kind: f"name it by -c {kind}/NAME" for kind in KINDS if kind != "data"},
}


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
        if self.source:  # a config of a run is data, one of `-c` is code
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
        """Parse by the parser of the subcommand, and hide the result until the constructor ends."""
        name, *others = args or [""]
        given = self._subcommand_parsers.get(name)  # the other checks each value again, and prints
        if given and not any(a.startswith("--print_config") for a in others):
            self.parsed = Namespace({"subcommand": name, name: given.parse_args(others)})
        else:
            self.parsed = parser.parse_args(args)
        self.config = Namespace(subcommand=None, seed_everything=False)

    def instantiate_classes(self) -> None:
        """Wait for `build_all`."""

    def parse_fit(self, args: Sequence[str]) -> None:
        """Parse the arguments of `fit` again, by the parser that is there."""
        self.refuse_linked(args)
        self.config = Namespace(subcommand="fit", fit=self.subparser.parse_args([*args]))

    def refuse_linked(self, args: Sequence[str]) -> None:
        """Raise UserError for an option that another one sets, which would replace it."""
        given = [argument.partition("=")[0].replace("init_args.", "") for argument in args]
        for key, target in self.linked.items():
            if (name := "--" + target.replace("init_args.", "")) in given:
                raise UserError(f"{name}: --{key} sets it")

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]  # Lightning's is static
        """Return the given subcommand, else all: building a parser for each takes time."""
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
        self.subparser = cast(ConfigParser, parser)
        parser.add_class_arguments(RunName, "run")
        parser.add_class_arguments(CheckpointOptions, "checkpoint")
        parser.add_argument("--defaults", type=dict | None, help="read by the launcher alone")
        parser.add_argument("--start", type=str | None, help="digest of ckpt_path, which fit sets")
        parser.add_lightning_class_args(SpectralMonitor, "spectral")
        links, links_from_model = self.app.links, self.app.links_from_model
        if own := self.own_model:
            known = vars(parser.get_defaults().model)
            self.subparser.own_options = known
            parser.add_argument("--model_class", default=f"{own.__module__}.{own.__qualname__}")
            links, links_from_model = {k: v for k, v in links.items() if v in known}, {}
        self.linked = {"seed_everything": "data.init_args.seed", **links_from_model}
        self.subparser.linked = self.linked
        self.refuse_linked(self.arguments)
        for key, target in self.linked.items():
            parser.link_arguments(key, target)
        for source, target in links.items():
            ends = f"data.{source}", f"model.{target}"  # a number of numpy or torch is unwrapped
            parser.link_arguments(*ends, lambda n: getattr(n, "item", lambda: n)(), "instantiate")

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
        if self.subcommand == "fit":  # the config that is saved has no path of it
            self.settings.start = hash_file(self.settings.ckpt_path) or self.settings.start
        config = self.export_config()
        for key, name in name_run(self.app.package, config).items():
            self.settings.run[key] = name
        if self.source and self.subcommand != "fit":
            return Run(self.source)
        return self.app.find_run(config, fitting=self.subcommand == "fit")

    def export_config(self) -> dict[str, Any]:
        """Return the parsed config as a plain mapping."""
        return json.loads(self.dump_settings("config", "defaults", file_format="json"))

    def _dump_config(self) -> None:
        """Keep the settings as hyperparameters; Lightning would validate and print them again."""
        self.config_dump = vars(self).get("config_dump") or self.export_config()

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
        given = [a for a in self.arguments if a.startswith(("--data", "-c=", "--config="))]
        strict = len(given) <= bool(self.source)  # RUN is a config
        # else a class of ours may read other data of the same names, one of the user's own any
        if self.subcommand != "fit" and (strict or isinstance(self.datamodule, SplitDataModule)):
            self.check_own_data(self.run, lambda: self.datamodule, strict)

    def check_own_data(self, run: Run, make_data: Callable[[], Any], strict: bool = True) -> None:
        """Raise UserError if names in answers, or with `strict` files, are not those of a run."""
        if self.settings.run.data in self.app.downloads:
            return
        try:
            data = make_data()
            paths: Sequence[Path] = getattr(data, "list_data_files", tuple)()
        except UserError:  # they are gone, and the result stays
            return
        names = data.list_names() if isinstance(data, SplitDataModule) else {}
        if not run.check_names(names) or strict:
            run.check_data(paths)

    def record_data(self) -> None:
        """Record the data of the run, and the names in answers where it is the user's own."""
        data, is_own = self.datamodule, self.settings.run.data not in self.app.downloads
        names = data.list_names() if is_own and isinstance(data, SplitDataModule) else {}
        self.run.record_data(getattr(data, "list_data_files", tuple)(), names)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer of the config, with the callbacks and the logger of every run."""
        settings, fitting = self.config_init[self.subcommand], self.subcommand == "fit"
        options, is_ours = settings.trainer, isinstance(settings.data, SplitDataModule)
        if is_ours and not options.use_distributed_sampler:
            text = "each device has its part of the data by the data module itself: leave it out"
            raise UserError(f"trainer.use_distributed_sampler: {text}, or bring your own module")
        if fitting and (path := settings.ckpt_path):
            is_own = Path(path).parent == self.run.checkpoint_folder
            patches.check_start(path, self.sharded, {} if is_own else settings.model.hparams)
        if self.subcommand == "predict":  # each device would write its part alone
            options.devices = options.num_nodes = 1
        own = _as_list(options.callbacks)
        bars: list[Callback] = [RichProgressBar()] * (options.enable_progress_bar is not False)
        others = [c for c in own if not isinstance(c, ProgressBar)]
        callbacks = bars if others == own else []
        if options.enable_progress_bar is False:  # as under the launcher
            options.callbacks = others
        if fitting:
            for part, name in ((settings.model, "test_step"), (settings.data, "test_dataloader")):
                if not is_overridden(name, part):
                    raise UserError(f"{type(part).__name__} has no {name}: a run ends with a test")
            check_callbacks(own, settings.model)
            named = self.run, settings.seed_everything, self.app.monitor
            callbacks += default_callbacks(*named, settings.checkpoint, self.preemption)
        # without training only --trainer.logger logs: that of a config may overwrite its files
        is_given = "--trainer.logger" in " ".join(self.arguments)
        loggers = _as_list(options.logger) if fitting or is_given else []
        if fitting and options.logger is not False:
            loggers = [RunLogger(self.run, settings.ckpt_path), *loggers]
        self.trainer_defaults = {"callbacks": callbacks}
        return super().instantiate_trainer(
            default_root_dir=self.run.folder,
            use_distributed_sampler=options.use_distributed_sampler and not is_ours,
            plugins=[patches.AtomicCheckpointIO(self.sharded), *_as_list(options.plugins)],
            logger=loggers,
        )


def expand_arguments(app: AppSpec, args: Sequence[str]) -> tuple[list[str], Path | None]:
    """Return the arguments with the config of RUN in its place, and the folder that RUN names."""
    text = "\0".join(["", *expand_home(args)])
    # write the options that are read here in one of their two spellings
    text = re.sub(r"(?<=\0)(-c|--config|--model|--trust|--run\.\w+)\0", r"\1=", text)
    args = text.split("\0")[1:]
    for name, remedy in _OPTIONS.items():
        if any(re.match(f"--{name}(\\.|=|$)", argument) for argument in args):
            raise UserError(f"--{name}: {remedy}")
    for kind, name in re.findall(r"\0--run\.(\w+)=([^\0]+)", text):
        if find_config(app.package, f"{kind}/{name}"):
            raise UserError(f"--run.{kind}={name} is a name alone: set it by -c {kind}/{name}")
    if re.fullmatch(r"(-c|--config)=.*|fit|validate|test|predict", " ".join(args)):
        chosen = (find_config(app.package, "base") or {}).get("defaults", {})
        raise UserError(
            f"write a command, then a config or a run: attention-{app.name} fit -c base -c "
            f"data/{chosen.get('data')} -c profile/smoke, or test RUN; fit --help lists the options"
        )
    if len(args) < 2 or args[1].startswith("-"):
        return args, None
    folder = Path(args[1]) if Run.parse(args[1]) else Path(args[1]).resolve()
    run = Run.parse(folder)
    if run is None or not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is no folder of a run: it is .../seed-N-HASH with config.yaml")
    is_copy = run.app not in (app.name, *list_apps())  # away from the folder of runs
    if is_copy and args[0] == "fit":
        raise UserError(f"{folder} is in no folder of runs: write fit -c {folder}/config.yaml")
    if not is_copy and run.app != app.name:
        raise UserError(f"{folder} is a run of {run.app}: write attention-{run.app} {args[0]}")
    path = folder if len(folder.parts) > 4 and ".." not in folder.parts else Path(abspath(folder))
    root = [] if is_copy else [f"--run.folder={path.parents[3]}"]
    return [args[0], f"-c={folder}/config.yaml", *root, *args[2:]], folder


def take_model(args: Sequence[str]) -> tuple[list[str], type[AttentionModule] | None]:
    """Return the arguments without `--model=CLASS`, and the class; None if it is that of the app.

    The config of a run has it as `model_class`.
    """
    found = [a.partition("=")[2] for a in args if re.fullmatch(r"--model=[A-Za-z_][\w.]*", a)]
    found = [name for name in found if not Path(name).is_file()]
    files = [Path(a.partition("=")[2]) for a in args if re.match("(-c|--config)=", a)]
    for path in files if not found else ():
        if path.is_file() and (name := read_settings(path.resolve()).get("model_class")):
            found.append(name)
    if not found:
        return [*args], None
    parser = ArgumentParser(exit_on_error=False)  # refuses what a stranger's config must not name
    parser.add_argument("--model", type=type[AttentionModule])
    with convert_user_errors(ImportError, AttributeError, prefix=f"--model={found[-1]}: "):
        model = parser.parse_args([f"--model={found[-1]}"]).model
    return [a for a in args if a not in [f"--model={name}" for name in found]], model


@contextmanager
def explain_absent_size(links: Mapping[str, str]) -> Iterator[None]:
    """Name the attributes that the model needs and that a data module of the user lacks."""
    try:
        yield
    except (AttributeError, TypeError) as error:
        absent = [k for k, v in links.items() if re.search(f"missing .*'{v}'", str(error))]
        is_data = isinstance(getattr(error, "obj", None), LightningDataModule)
        if is_data and not find_own_line(error):
            absent = [str(error.name)]  # type: ignore[union-attr]
        if not absent:
            raise
        text = f"data: the model needs {' and '.join(absent)}: make it an attribute of the class"
        raise UserError(text) from error


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value not in (None, True, False) else []
