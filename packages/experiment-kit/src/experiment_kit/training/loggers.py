"""The TensorBoard logger of a run, and its end: scores, hyperparameters, and the result."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.tensorboard.summary import hparams

from experiment_kit.app_files import flatten_row
from experiment_kit.run import Run, parse_step
from experiment_kit.training.callbacks import EpochTimer
from experiment_kit.training.lightning_patches import BestCheckpoint

_NAMES = ("recipe", "method", "profile")  # kinds of overlays
_SLOTS = ("filter", "kernel", "tokens", "reparam")


class RunLogger(TensorBoardLogger):
    """Log curves into the run's folder; test scores, which are none, stand in HPARAMS alone.

    What was logged after the step of the checkpoint `resume` is hidden.
    """

    def __init__(self, run: Run, resume: str | None) -> None:
        path, is_new = Path(resume or ""), not any(run.folder.glob("events.out.*"))
        step = parse_step(path) if path.parent == run.checkpoint_folder else 0
        options: Any = {"default_hp_metric": False, "purge_step": None if is_new else step}
        super().__init__(run.folder, name="", version="", **options)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log curves; the epoch, which Lightning adds, would be the first chart."""
        curves = {name: x for name, x in metrics.items() if not name.startswith(("test/", "epoch"))}
        super().log_metrics(curves, step)

    def save(self) -> None:
        """Write what is in memory; Lightning's own adds an hparams.yaml."""
        self.experiment.flush()


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
    orders = (model.get(f"model.{slot}.K") for slot in _SLOTS)
    found = {"K": next((K for K in orders if K is not None), None)}
    found |= {"data": "-".join(filter(None, (run.get("data"), run.get("backbone"))))}
    found |= {name: run.get(name) for name in _NAMES}
    found |= {"lr": model.pop("model.optimizer.lr", None), "seed": config.get("seed_everything")}
    found |= {"train.batch_size": data.get("batch_size")}
    found |= {"train.max_epochs": config.get("trainer", {}).get("max_epochs")} | model
    return {name: value for name, value in found.items() if value not in (None, "")}


def log_hyperparameters(
    loggers: Iterable[Any], parameters: Mapping[str, Any], scores: Mapping[str, float], monitor: str
) -> None:
    """Log hyperparameters; HPARAMS shows the test scores beside them, and the monitored metric.

    It shows five columns at first, by their names: K, the test score of that metric, data, lr and
    method.
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
        for summary in hparams({**parameters, **tested}, {monitor: 0.0}):
            logger.experiment._get_file_writer().add_summary(summary)
        logger.experiment.close()


def score_and_write_result(cli: Any, seconds: float) -> None:
    """Score the test set at the best epoch, else at the end, and write the result of the run.

    `seconds` is the time of training in this process alone.
    """
    run, trainer = cli.run, cli.trainer
    logged = trainer.callback_metrics  # testing resets them
    trained = {k: logged[k].item() for k in cli.app.report_train_metrics if k in logged}
    (tracker,) = (c for c in trainer.callbacks if isinstance(c, BestCheckpoint))
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
    parameters = collect_hyperparameters(cli.read_settings())
    log_hyperparameters(trainer.loggers, parameters, metrics, cli.app.monitor)
    run.write_result(result)  # last: nothing is added to a finished run
    shown = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    print(f"finished {run.folder}: {shown}", flush=True)


def describe_run(cli: Any) -> dict[str, Any]:
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


def score_checkpoint(cli: Any, path: Path | None) -> dict[str, float]:
    """Test the weights of a checkpoint, or those in memory; return the metrics of all loaders."""
    parts = cli.trainer.test(
        cli.model, None, path and str(path), False, cli.datamodule, weights_only=True
    )
    return {name: value for part in parts for name, value in part.items()}
