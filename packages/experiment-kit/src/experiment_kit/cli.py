"""The command line of every app: LightningCLI with overlays, run folders and one-sentence errors.

    python -m attention_<app> {fit,validate,test,predict} -c overlay.yaml ... --key=value

Overlays merge from left to right. `fit` trains, resumes what was interrupted, leaves alone what
is finished, and ends with one pass over the test set at the best epoch.
"""

import hashlib
import io
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning_utilities.core.rank_zero import rank_zero_only

from experiment_kit.data.download import Download
from experiment_kit.diagnostics.monitor import SpectralMonitor
from experiment_kit.errors import UserError, exit_on_user_error, summarize_parser_error
from experiment_kit.run import Run, RunName, is_readable_checkpoint, parse_step, write_atomically
from experiment_kit.training.callbacks import EpochTimer, build_logger, default_callbacks
from experiment_kit.training.lightning_patches import (
    AtomicCheckpointIO,
    check_sharded,
    clear_optimizers,
    disable_sharded_saving,
)


@dataclass(frozen=True)
class AppSpec:
    """An app: its name, its classes, and what its command line needs to know of them.

    - `links`: attributes of the data module -> arguments of the model;
    - `links_from_model`: arguments -> arguments that receive their value, as `model.dim` ->
      `data.init_args.dim`;
    - `monitor`: validation metric whose maximum chooses the epoch;
    - `score_last`: score the test set at the last epoch too;
    - `report_train_metrics`: metrics of the last epoch to add to the result;
    - `hashed_files`: arguments whose file contents enter the run's hash;
    - `downloads`: for each data set its files, or how to get them by hand;
    - `shape_only_data`: data modules -> stand-ins that know the shapes without reading a file;
    - `measure_recipe_batch`: measure efficiency at the recipe's batch size.
    """

    name: str
    model: type[LightningModule]
    data: type[LightningDataModule]
    links: Mapping[str, str] = field(default_factory=dict)
    links_from_model: Mapping[str, str] = field(default_factory=dict)
    monitor: str = "val/accuracy"
    score_last: bool = False
    report_train_metrics: Sequence[str] = ()
    hashed_files: Sequence[str] = ()
    downloads: Mapping[str, Sequence[Download] | str] = field(default_factory=dict)
    shape_only_data: Mapping[type, Callable[..., Any]] = field(default_factory=dict)
    measure_recipe_batch: bool = False


class AppCLI(LightningCLI):
    """LightningCLI whose runs have their own folder, resume, and end with a result."""

    def __init__(
        self,
        app: AppSpec,
        args: list[str] | None = None,
        plan: bool = False,
        stack: ExitStack | None = None,
    ) -> None:
        self.app, self.plan = app, plan
        self.stack = stack or ExitStack()  # holds the run's lock
        strict = {"exit_on_error": False}
        super().__init__(
            app.model,
            app.data,
            subclass_mode_data=True,
            save_config_callback=None,
            seed_everything_default=0,
            auto_configure_optimizers=False,
            parser_kwargs={**strict, **{name: strict for name in self.subcommands()}},
            args=args,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add what identifies a run, the monitor's settings, and the links."""
        parser.add_class_arguments(RunName, "run")
        parser.add_argument("--defaults", type=dict | None, help="read by the launcher alone")
        parser.add_lightning_class_args(SpectralMonitor, "spectral")
        parser.link_arguments("seed_everything", "data.init_args.seed")
        for source, target in self.app.links_from_model.items():
            parser.link_arguments(source, target)
        for source, target in self.app.links.items():
            parser.link_arguments(f"data.{source}", f"model.{target}", apply_on="instantiate")

    def _parse_ckpt_path(self) -> None:
        """Leave the config as it was given.

        Lightning lets hyperparameters inside a checkpoint override it silently, so that another
        K is asked for and the old one is used.
        """

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse; Lightning's own warns of arguments that come from a program."""
        self.config = parser.parse_args(args)

    def _set_seed(self) -> None:
        if not self.plan:
            super()._set_seed()

    def locate(self) -> Run:
        """The run of the parsed config, and of the checkpoint that training starts from."""
        config, parsed = yaml.safe_load(self._dump()), self.config[self.subcommand]
        named = {key: parsed.get(key) for key in self.app.hashed_files}
        named["start"] = parsed.ckpt_path if self.subcommand == "fit" else None
        # what names no file here, such as weights on a hub, has no content
        contents = {k: found for k, path in named.items() if path and (found := _content(path))}
        config |= {"start": contents.pop("start", None), "files": contents or None}
        return Run.from_config(self.app.name, config)

    def _dump(self) -> str:
        config = self.config[self.subcommand].clone()
        for key in ("config", "ckpt_path", "defaults"):
            config.pop(key, None)
        return self._parser(self.subcommand).dump(config, skip_none=False, skip_link_targets=False)

    def instantiate_classes(self) -> None:
        """Find the run before anything is built; build nothing where only a plan is wanted."""
        try:
            self.run = self.locate()
            if self.plan:
                return
            self._prepare(self.config[self.subcommand])
            super().instantiate_classes()
        except (ValueError, MisconfigurationException) as error:
            raise UserError(summarize_parser_error(str(error))) from error
        if self.subcommand == "fit" and _is_first():
            self.run.save_config(self._dump())

    def _prepare(self, config: Any) -> None:
        config.weights_only = True
        self.sharded = disable_sharded_saving(config.trainer.strategy)
        if self.subcommand == "fit":
            if _is_first():
                self.stack.enter_context(self.run.lock())
            if self.run.read_result() is not None:
                print(f"already finished: {self.run.folder}")
                raise SystemExit(0)
        elif not config.ckpt_path:
            if (path := self.run.find_test_checkpoint()) is None:
                raise UserError(f"{self.run.folder} is not trained: run fit, or give ckpt_path")
            config.ckpt_path = str(path)
        if config.ckpt_path and not is_readable_checkpoint(Path(config.ckpt_path)):
            raise UserError(f"ckpt_path {config.ckpt_path} is not a whole checkpoint")

    def _run_subcommand(self, subcommand: str) -> None:
        if self.plan:
            return
        try:
            super()._run_subcommand(subcommand)
        except MisconfigurationException as error:
            raise UserError(summarize_parser_error(str(error))) from error
        except RuntimeError as error:
            if "loading state_dict" not in str(error):
                raise
            path, reason = self.config_init[subcommand].ckpt_path, " ".join(str(error).split())
            raise UserError(f"{path} is of another model: {reason[:200]} ...") from error

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add what every run carries to the trainer that the config describes."""
        settings = self.config_init[self.subcommand]
        if self.subcommand == "fit" and not settings.ckpt_path:
            settings.ckpt_path = self._resumed()
        if self.subcommand == "fit" and settings.ckpt_path and self.sharded:
            check_sharded(settings.ckpt_path)
        self.trainer_defaults = {"callbacks": self._callbacks(settings)}
        own = [build_logger(self.run, settings.ckpt_path)] if self.subcommand == "fit" else []
        return super().instantiate_trainer(
            default_root_dir=self.run.folder,
            use_distributed_sampler=False,
            plugins=[AtomicCheckpointIO(self.sharded), *_listed(settings.trainer.plugins)],
            logger=[*own, *_listed(settings.trainer.logger)],
        )

    def _resumed(self) -> str | None:
        found = self.run.find_newest_checkpoint()
        if found is None:
            return None
        print(f"resuming {self.run.folder} from step {parse_step(found)}", flush=True)
        return str(found)

    def _callbacks(self, settings: Any) -> list[Callback]:
        bar: list[Callback] = [RichProgressBar()]
        if settings.trainer.enable_progress_bar is False:
            bar = []
        if self.subcommand != "fit":
            return bar
        return [*bar, *default_callbacks(self.run, settings.seed_everything, self.app.monitor)]

    def fit(self, **kwargs: Any) -> None:
        """Train; `seconds` counts this process alone."""
        began = time.perf_counter()
        self.trainer.fit(**kwargs)
        self.seconds = time.perf_counter() - began
        logged = self.trainer.callback_metrics  # testing begins anew
        self.trained = {
            name: logged[name].item() for name in self.app.report_train_metrics if name in logged
        }

    def predict(self, **kwargs: Any) -> None:
        """Predict, and write the outputs of all batches into the run's folder."""
        buffer = io.BytesIO()
        torch.save(self.trainer.predict(**kwargs), buffer)
        write_atomically(self.run.folder / "predictions.pt", buffer.getvalue())
        print(f"wrote {self.run.folder / 'predictions.pt'}")

    def after_fit(self) -> None:
        """Score the test set once, at the best epoch, and write the result.

        Where no epoch was validated, none is best: what is scored is what training ended with.
        """
        trainer: Any = self.trainer
        best = self.run.checkpoint_folder / "best.ckpt"
        path = str(best) if trainer.strategy.broadcast(best.exists()) else None
        clear_optimizers(trainer)
        # the weights in memory are those of the last epoch, trained or loaded
        last = self._score(None) if self.app.score_last else {}
        metrics = self._score(path)
        metrics |= {f"last/{name.removeprefix('test/')}": value for name, value in last.items()}
        if trainer.is_global_zero and not trainer.fast_dev_run:
            self.run.write_result(self._result(metrics, path))
            print(f"finished {self.run.folder}: {_show(metrics)}", flush=True)

    def _score(self, path: str | None) -> dict[str, float]:
        parts = self.trainer.test(self.model, None, path, False, self.datamodule, True)
        return {name: value for part in parts for name, value in part.items()}  # of each loader

    def _result(self, metrics: Mapping[str, float], best: str | None) -> dict[str, Any]:
        labels = self.config[self.subcommand].run.as_dict()
        labels.pop("folder")
        origin = getattr(self.model, "weights_source", getattr(self.model, "origin", None))
        trainer: Any = self.trainer
        (times,) = (c for c in trainer.callbacks if isinstance(c, EpochTimer))
        watching = (c for c in trainer.checkpoint_callbacks if c.monitor == self.app.monitor)
        # one of the user's own may not have seen any
        scores = [c.best_model_score.item() for c in watching if c.best_model_score is not None]
        chosen_by = {self.app.monitor: max(scores)} if scores else {}
        return {
            "app": self.app.name,
            **labels,
            "protocol": getattr(self.datamodule, "protocol", ""),
            **({} if origin is None else {"origin": origin}),  # of the weights, before training
            "seed": self.config[self.subcommand].seed_everything,
            "hash": self.run.folder.name.rpartition("-")[2],
            "metrics": {**metrics, **chosen_by, **self.trained, **times.collect_metrics()},
            "best_epoch": best and torch.load(best, map_location="cpu", weights_only=True)["epoch"],
            "epochs": self.trainer.current_epoch,
            "parameters": sum(p.numel() for p in self.model.parameters() if p.requires_grad),
            "seconds": round(self.seconds, 1),
        }


def _content(path: str) -> str | None:
    file = Path(path)
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def _is_first() -> bool:
    return getattr(rank_zero_only, "rank", 0) == 0


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value not in (None, True, False) else []


def _show(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def run_app(app: AppSpec, args: list[str] | None = None) -> None:
    """Run an app's command line; a mistake is one sentence and exit status 2."""
    with exit_on_user_error(), ExitStack() as stack:
        AppCLI(app, args, stack=stack)


# shim: issue 16, deleted at the end
main = run_app


def App(
    *,
    shared: Mapping[str, str] | None = None,
    trained: Sequence[str] = (),
    files: Sequence[str] = (),
    **kwargs: Any,
) -> AppSpec:
    """Make an AppSpec from old names."""
    return AppSpec(
        links_from_model=shared or {}, report_train_metrics=trained, hashed_files=files, **kwargs
    )
