"""The scores of a run: one pass over the test set at the best epoch, and the result."""

from pathlib import Path
from typing import Any

import torch

from experiment_kit.training.callbacks import EpochTimer
from experiment_kit.training.lightning_patches import BestCheckpoint
from experiment_kit.training.loggers import collect_hyperparameters, log_hyperparameters


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
