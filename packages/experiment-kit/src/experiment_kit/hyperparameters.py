"""Hyperparameters as plain data, in the form of a config, so that any checkpoint is read safely."""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from lightning.pytorch.core.mixins import HyperparametersMixin

_INSTANTIATOR = "lightning.pytorch.cli.instantiate_module"  # builds a module from a config


def save_plain_hyperparameters(module: HyperparametersMixin, ignore: Sequence[str] = ()) -> None:
    """Save the arguments of the `__init__` that runs, as `save_hyperparameters` does, as data.

    `load_from_checkpoint` builds objects again from `class_path` and `init_args`. What has no such
    form, as a lambda, is left out.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is an instance of `nn.Module`")
        module.save_hyperparameters(ignore=list(ignore), frame=inspect.currentframe().f_back)  # type: ignore[union-attr]
    plain: dict[str, Any] = {"_instantiator": _INSTANTIATOR}
    for name, value in list(module.hparams.items()):
        try:
            plain[name] = describe_value(value)
        except (TypeError, ValueError):  # a class of C has no signature
            del module.hparams[name]
    module.save_hyperparameters(plain)


def describe_value(value: Any) -> Any:
    """Return a value as it stands in a config; TypeError for one that has no such form.

    >>> from attention_core import GFSA
    >>> describe_value({"filter": partial(GFSA, K=4), "layers": (1, 2)})["filter"]
    {'class_path': 'attention_core.filters.gfsa.GFSA', 'init_args': {'K': 4}}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {key: describe_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe_value(item) for item in value]
    if isinstance(value, partial):
        # jsonargparse passes the class to a function of its own that builds it
        target, *others = [x for x in value.args if not inspect.isfunction(x)] or [value.func]
        if others or not callable(target):
            raise TypeError("a config has no arguments without names")
        return {
            "class_path": _find_import_path(target),
            "init_args": describe_value(value.keywords),
        }
    if inspect.isclass(value):
        return {"class_path": _find_import_path(value)}
    if inspect.isfunction(value):
        return _find_import_path(value)
    names = [*inspect.signature(type(value)).parameters]
    if missing := [name for name in names if not hasattr(value, name)]:
        raise TypeError(f"{type(value).__name__} has no attribute {missing[0]}")
    options = {name: describe_value(getattr(value, name)) for name in names}
    return {"class_path": _find_import_path(type(value)), "init_args": options}


def _find_import_path(item: Any) -> str:
    path = f"{item.__module__}.{item.__qualname__}"
    if "<" in path or item.__module__ == "__main__":
        raise TypeError(f"{path} cannot be imported")
    return path
