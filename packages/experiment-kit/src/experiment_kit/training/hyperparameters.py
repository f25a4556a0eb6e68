"""The hyperparameters of a run in its loggers, beside the metrics of its end."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.utils.tensorboard.summary import hparams

_NAMES = ("data", "backbone", "recipe", "method", "profile")  # of overlays
_SLOTS = ("filter", "kernel", "tokens", "reparam")


def collect_hyperparameters(config: Mapping[str, Any]) -> dict[str, bool | float | str]:
    """Return what a table of runs compares: K, overlays, lr, seed, and all of the model's.

    An object is its class, and its arguments stand below its name. TensorBoard shows the first
    five by name: K, backbone, data, lr and method.

    >>> gfsa = {"class_path": "attention_core.GFSA", "init_args": {"K": 3, "learn": ["wK"]}}
    >>> found = collect_hyperparameters({"seed_everything": 0, "model": {"filter": gfsa}})
    >>> {name: found[name] for name in ("K", "model.filter", "model.filter.learn", "seed")}
    {'K': 3, 'model.filter': 'GFSA', 'model.filter.learn': 'wK', 'seed': 0}
    """
    run, data = config.get("run", {}), config.get("data", {}).get("init_args", {})
    model = dict(_flatten(config.get("model", {}), "model."))
    orders = (model.get(f"model.{slot}.K") for slot in _SLOTS)
    found = {"K": next((K for K in orders if K is not None), None)}
    found |= {name: run.get(name) for name in _NAMES}
    found |= {"lr": model.pop("model.optimizer.lr", None), "seed": config.get("seed_everything")}
    found |= {"train.batch_size": data.get("batch_size")}
    found |= {"train.max_epochs": config.get("trainer", {}).get("max_epochs")} | model
    return {name: value for name, value in found.items() if value not in (None, "")}


def log_hyperparameters(
    loggers: Iterable[Any], parameters: Mapping[str, Any], metrics: Iterable[str]
) -> None:
    """Log hyperparameters; TensorBoard's HPARAMS shows the newest value of each metric's tag."""
    for logger in loggers:
        add_summary = getattr(logger.experiment, "_get_file_writer", None)
        if add_summary is None:
            logger.log_hyperparams(dict(parameters))
            continue
        # not by Lightning, which would add a point to each metric's curve
        for summary in hparams(dict(parameters), dict.fromkeys(metrics, 0.0)):
            add_summary().add_summary(summary)
        logger.experiment.close()


def _flatten(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if "class_path" in value:
                yield name, value["class_path"].rpartition(".")[2]
                value = value.get("init_args", {})
            yield from _flatten(value, f"{name}.")
        else:
            yield name, " ".join(map(str, value)) if isinstance(value, list) else value
