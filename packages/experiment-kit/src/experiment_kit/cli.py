"""The stages of a run, executed as a command line of an app asks: fit, validate, test, predict.

`fit` trains, resumes an interrupted run, skips a finished one, and at last tests the best epoch.
"""

import re
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from inspect import signature
from pathlib import Path
from pydoc import locate
from tempfile import TemporaryDirectory
from typing import Any

import torch
import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.utils.tensorboard.summary import hparams
from torch.utils.tensorboard.writer import FileWriter

from experiment_kit import run_files
from experiment_kit.app import AppSpec
from experiment_kit.app_cli import AppCLI, explain_absent_size
from experiment_kit.app_files import SLOTS, flatten_row, read_option
from experiment_kit.environment import search_working_directory_last
from experiment_kit.errors import UserError, convert_user_errors, exit_on_user_error
from experiment_kit.run import Run, config_hash
from experiment_kit.training import lightning_patches as patches
from experiment_kit.training.callbacks import EpochTimer
from experiment_kit.training.checkpoints import explain_failure

LENGTHS = ("max_epochs", "max_steps", "min_epochs", "min_steps", "max_time")
REFUSED = {  # flags of the Trainer -> the values that act, and what to use instead of others
    "default_root_dir": ((None,), "a run has its own folder below run.folder: name that one"),
    "enable_checkpointing": ((None, True), "a run resumes by them; fast_dev_run=1 leaves nothing"),
    "barebones": ((False,), "speed is measured by allpass efficiency"),
    "model_registry": ((None,), "nothing is uploaded: share the folder of the run"),
}


def run_app(app: AppSpec, args: list[str] | None = None) -> None:
    """Run an app's command line; a mistake is one sentence and exit status 2."""
    patches.drop_chatter()
    search_working_directory_last()
    with exit_on_user_error():
        execute_subcommand(AppCLI(app, args))


def execute_subcommand(cli: AppCLI) -> Trainer | None:
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
            check_given_files(cli)
            print(f"already finished: {run.folder}")
            return None
        if fitting and cli.source and patches.is_first_process():
            copy_last_state(cli.app, Run(cli.source), run, cli.export_config())
        settings.weights_only = True
        settings.ckpt_path = find_start_checkpoint(run, settings.ckpt_path, fitting, settings.start)
        kinds = (TypeError, ValueError, MisconfigurationException, ModuleNotFoundError)
        with convert_user_errors(*kinds):
            cli.build_all()
        if fitting and patches.is_first_process():
            cli.record_data()
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
            run_files.write_atomically(run.folder / "predictions.pt", partial(torch.save, outputs))
            print(f"wrote {run.folder}/predictions.pt")
    return cli.trainer


def check_flags(options: Any) -> None:
    """Raise UserError for a flag of the Trainer that would not act."""
    for name, (values, remedy) in REFUSED.items():
        if options[name] not in values:
            raise UserError(f"trainer.{name}: {remedy}")
    for name in ("accumulate_grad_batches", "check_val_every_n_epoch", "val_check_interval",
                 "limit_train_batches"):  # fmt: skip
        if isinstance(options[name], int | float) and options[name] <= 0:
            raise UserError(f"trainer.{name} must be above 0, got {options[name]}")
    if re.search("spawn|fork|notebook", str(options["strategy"])):
        raise UserError("trainer.strategy: processes that are forked return no scores: take ddp")


def check_given_files(cli: AppCLI) -> None:
    """Raise UserError for a missing checkpoint, or other own data than a finished run had."""
    if cli.settings.ckpt_path not in (None, "last"):
        find_start_checkpoint(cli.run, cli.settings.ckpt_path, fitting=True)
    data = cli.settings.data
    kind: Any = locate(data.class_path)
    if hasattr(kind, "list_data_files"):
        cli.check_own_data(cli.run, partial(kind, **data.init_args.as_dict()))


def find_start_checkpoint(run: Run, given: Any, fitting: bool, start: Any = None) -> str | None:
    """Return the checkpoint to resume from, to start from (its digest is `start`), or to test."""
    if fitting and given == "best":
        raise UserError("ckpt_path best has weights alone: leave it out, to go on where it ended")
    path = None if given in (None, "best", "last") else given
    if path and not run_files.is_whole_checkpoint(Path(path), resumable=fitting):
        remedy = ", with more than weights: give a step=N.ckpt to go on from" * fitting
        raise UserError(f"ckpt_path {path} is not a whole checkpoint{remedy}")
    if path and (not fitting or run.has_result):
        return path
    is_last = fitting or given == "last"  # the run's own wins: it has begun from the given one
    found = run.find_newest_checkpoint() if is_last else run.find_test_checkpoint()
    if found is None:
        if not fitting:
            remedy = "run fit, name the folder of a run, as in test RUN, or give ckpt_path"
            raise UserError(f"{run.folder} is not trained: {remedy}")
        if start and not path:
            raise UserError(
                f"{run.folder} began from a checkpoint: give --ckpt_path or --start=null"
            )
        return path
    if fitting:
        print(f"resuming {run.folder} from step {run_files.parse_step(found)}", flush=True)
    return str(found)


def copy_last_state(app: AppSpec, source: Run, run: Run, config: Mapping[str, Any]) -> None:
    """Let a run start from the last state of the shorter run whose config it was made from."""
    step = source.find_latest_step()
    if source.hash == run.hash or step is None or run.find_latest_step() is not None:
        return
    shorter = run_files.read_mapping(source.folder / "config.yaml", "", yaml.safe_load) or {}
    is_edited = app.find_run(shorter).hash != source.hash
    reason = "its config.yaml was edited" if is_edited else explain_difference(shorter, config)
    path = source.find_newest_checkpoint() if source.has_result else None
    state = torch.load(path, map_location="cpu", weights_only=True) if path else {}
    loops = state.get("loops", {}).get("fit_loop", {}).get("epoch_loop.batch_progress", {})
    is_apart = "averaging_state" in state or not loops.get("is_last_batch", True)
    is_stopped = state.get("resumable", {}).get("stopped", False)
    is_apart |= is_stopped and read_option(shorter, "trainer.max_time") is not None
    if reason := reason or "it averaged its weights, or ended by time or in an epoch" * is_apart:
        print(f"{run.folder} starts from nothing, not from {source.folder}: {reason}")
        return
    # first the record, so that other data is found, and the curves, without HPARAMS
    for path in [*source.folder.glob("data.json"), *source.folder.glob("events.out.*[0-9]")]:
        shutil.copy(path, run.folder)
    copy = partial(shutil.copytree, source.checkpoint_folder, dirs_exist_ok=True)
    with convert_user_errors(shutil.Error, prefix=f"cannot copy {source.checkpoint_folder}: "):
        run_files.write_folder_once(run.checkpoint_folder, copy, is_whole=lambda _: False)
    print(f"{run.folder} starts from step {step} of {source.folder}")


def explain_difference(shorter: Mapping[str, Any], longer: Mapping[str, Any]) -> str:
    """Return why a run does not pass through the last state of a shorter one; "" if it does."""
    old, new = ({**config, "trainer": {**config["trainer"]}} for config in (shorter, longer))
    ends = [[c["trainer"].pop(name, None) for name in LENGTHS] for c in (old, new)]
    if config_hash(old) != config_hash(new):
        return "it differs in more than its length"
    schedule = longer["model"].get("schedule") or {}
    name = schedule.get("class_path", "ConstantSchedule").rpartition(".")[2]
    if name != "ConstantSchedule" or 0 < schedule.get("init_args", {}).get("warmup", 0) < 1:
        return f"the learning rates of {name} depend on the length"
    unbound = (None, -1)
    pairs = [*zip(*ends, strict=True)]
    if any((a or 0) > (b or 0) for a, b in pairs[2:4]):
        return "it had a longer minimum"
    is_longer = all(b in unbound or (a not in unbound and a <= b) for a, b in pairs[:2])
    return "" if is_longer else "it is shorter"


def score_and_write_result(cli: AppCLI, seconds: float) -> None:
    """Score the test set at the best epoch, else at the end, and write the result of the run.

    `seconds` is the time of training in this process alone.
    """
    run: Run = cli.run
    trainer: Any = cli.trainer
    logged = trainer.callback_metrics  # testing resets them
    trained = {k: logged[k].item() for k in cli.app.report_train_metrics if k in logged}
    (tracker,) = (c for c in trainer.callbacks if isinstance(c, patches.BestCheckpoint))
    found = tracker.best_model_score  # None where no epoch was validated
    score = {} if found is None else {str(tracker.monitor): found.item()}
    best = run.find_best_checkpoint(is_validated=bool(score))
    trainer.strategy.optimizers = []  # else FSDP2 looks for their states in best.ckpt
    # the weights in memory are those of the last epoch, trained or loaded
    last = score_checkpoint(cli, None) if cli.app.score_last else {}
    metrics = score_checkpoint(cli, best)
    metrics |= {f"last/{name.removeprefix('test/')}": value for name, value in last.items()}
    if not trainer.is_global_zero or trainer.fast_dev_run:
        return
    (timer,) = (c for c in trainer.callbacks if isinstance(c, EpochTimer))
    result = {
        **describe_run(cli),
        "metrics": {**metrics, **score, **trained, **timer.collect_metrics()},
        "best_epoch": best and torch.load(best, map_location="cpu", weights_only=True)["epoch"],
        "epochs": trainer.current_epoch,
        "parameters": sum(p.numel() for p in cli.model.parameters() if p.requires_grad),
        "seconds": round(seconds, 1),
    }
    parameters = collect_hyperparameters(cli.export_config())
    log_hyperparameters(trainer.loggers, parameters, metrics, cli.app.monitor)
    run.write_result(result)  # last: nothing is added to a finished run
    shown = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    print(f"finished {run.folder}: {shown}", flush=True)


def score_checkpoint(cli: AppCLI, path: Path | None) -> dict[str, float]:
    """Test the weights of a checkpoint, or those in memory; return the metrics of all loaders."""
    parts = cli.trainer.test(cli.model, None, path, False, cli.datamodule, weights_only=True)
    return {name: value for part in parts for name, value in part.items()}


def describe_run(cli: AppCLI) -> dict[str, Any]:
    """Return what identifies a run: app, overlays, protocol, initial weights, seed and hash."""
    overlays = {k: name for k, name in cli.settings.run.as_dict().items() if k != "folder"}
    protocol = overlays.pop("protocol") or getattr(cli.datamodule, "protocol", "")
    source = getattr(cli.model, "weights_source", None)  # before training
    return {
        "app": cli.app.name,
        **overlays,
        "protocol": protocol,
        **({} if source is None else {"weights_source": source}),
        "seed": cli.settings.seed_everything,
        "hash": cli.run.hash,
    }


def collect_hyperparameters(config: Mapping[str, Any]) -> dict[str, bool | float | str]:
    """Return what a table of runs compares: K, overlays, lr, seed, and all of the model's.

    An object is its class, and its arguments stand below its name.

    >>> gfsa = {"class_path": "attention_core.GFSA", "init_args": {"K": 3, "learn": ["wK"]}}
    >>> found = collect_hyperparameters({"seed_everything": 0, "model": {"filter": gfsa}})
    >>> {name: found[name] for name in ("K", "model.filter", "model.filter.learn", "seed")}
    {'K': 3, 'model.filter': 'GFSA', 'model.filter.learn': 'wK', 'seed': 0}
    """
    run, data = config.get("run", {}), config.get("data", {}).get("init_args", {})
    model: dict[str, Any] = {}
    for key, value in flatten_row({"model": config.get("model", {})}):
        name = key.replace(".init_args", "").removesuffix(".class_path")
        value = value.rpartition(".")[2] if key.endswith(".class_path") else value
        model[name] = " ".join(map(str, value)) if isinstance(value, list) else value
    if "model.weight_decay" in model:  # the parameter groups have it, not that of the optimizer
        model.pop("model.optimizer.weight_decay", None)
    orders = (model.get(f"model.{slot}.K") for slot in SLOTS)
    found = {"K": next((K for K in orders if K is not None), None)}
    found |= {"data": "-".join(filter(None, (run.get("data"), run.get("backbone"))))}
    found |= {kind: run.get(kind) for kind in ("method", "profile")}
    found |= {"lr": model.pop("model.optimizer.lr", None), "seed": config.get("seed_everything")}
    found |= {"train.batch_size": data.get("batch_size")}
    found |= {"train.max_epochs": config.get("trainer", {}).get("max_epochs")} | model
    return {name: value for name, value in found.items() if value not in (None, "")}


def log_hyperparameters(
    loggers: Iterable[Any], parameters: Mapping[str, Any], scores: Mapping[str, float], monitor: str
) -> None:
    """Log hyperparameters; HPARAMS shows the test scores beside them, and the monitored metric.

    It shows five columns at first, by name: K, the test score of that metric, data, lr, method.
    """
    main = monitor.replace("val/", "test/")
    tested = {name: x for name, x in scores.items() if name.startswith("test/") and name != main}
    if main in scores:
        tested[main.replace("test/", "Test ")] = scores[main]
    for logger in loggers:
        if not isinstance(logger, TensorBoardLogger):
            logger.log_hyperparams(dict(parameters))
            continue
        # not by Lightning, which would add a point to the metric's curve
        writer = FileWriter(logger.log_dir, filename_suffix=".hparams")
        for summary in hparams({**parameters, **tested}, {monitor: 0.0}):
            writer.add_summary(summary)
        writer.close()
